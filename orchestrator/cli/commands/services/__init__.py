"""The commands of the processes that serve others."""
