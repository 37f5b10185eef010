"""One attempt of a job, from its claim to its commit."""
