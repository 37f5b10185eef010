"""Delegation to sub-agents in the same process."""
