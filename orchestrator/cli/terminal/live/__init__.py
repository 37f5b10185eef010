"""The live view of jobs."""
