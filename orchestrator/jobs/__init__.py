"""Kernel 1: what a job is. It knows pydantic and Redis, and nothing else of fanout."""
