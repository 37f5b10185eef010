"""Sub-agents in the same process."""
