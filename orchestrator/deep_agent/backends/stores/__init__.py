"""Backends over stores that outlive a session."""
