"""The commands of `fanout`, one module a group."""
