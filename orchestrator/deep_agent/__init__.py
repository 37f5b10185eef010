"""Kernel 2: the agent harness on ADK over any backend; it knows nothing of jobs."""
