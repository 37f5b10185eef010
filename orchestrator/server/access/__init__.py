"""The callers of the service, and their rights."""
