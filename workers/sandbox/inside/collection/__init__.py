"""The collection of a job's changes: what a steward runs in a jail."""
