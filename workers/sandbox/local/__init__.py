"""Sandboxes without Docker: folders and processes of this machine."""
