"""Approvals: guarded calls, which run only after a person's decision."""
