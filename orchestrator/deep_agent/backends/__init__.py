"""Backends: where an agent's files are and its commands run."""
