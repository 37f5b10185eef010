"""Tools of MCP servers; the SDK is imported only when an agent with servers runs.

Begin with `tools.py`. The start of a server's process in a sandbox is in
`workers/agent/subagent.py`.
"""
