"""Sandboxes as processes of this machine, without isolation."""
