"""The routes of runs, and of the workspaces that they start from."""
