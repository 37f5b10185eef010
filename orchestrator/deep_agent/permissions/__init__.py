"""Permissions: which files an agent may read and write, and which commands it may run."""
