"""One sub-agent at work on one task."""
