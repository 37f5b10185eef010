"""What a coordinator and a job that delegates share: agents, tool texts, calls and results."""
