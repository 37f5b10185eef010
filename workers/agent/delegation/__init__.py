"""The tasks that an agent on a worker delegates to other agents, each a job of its own."""
