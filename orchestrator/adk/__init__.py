"""The doors for ADK: agents and tools of a program's own process whose work is jobs."""
