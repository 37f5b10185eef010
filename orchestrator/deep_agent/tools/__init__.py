"""The built-in tools: files, shell, plan."""
