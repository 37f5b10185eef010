"""The tools that every deep agent has: files, shell, plan."""
