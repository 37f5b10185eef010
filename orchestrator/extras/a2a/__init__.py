"""The A2A door: a job is a task, and a chain of continuations a context."""
