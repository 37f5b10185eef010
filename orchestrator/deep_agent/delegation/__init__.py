"""Delegation to sub-agents in the same process, and calls whose results are deferred.

Begin with `subagents.py`. Sub-agents as jobs are in `orchestrator/adk` and
`workers/agent/delegation`.
"""
