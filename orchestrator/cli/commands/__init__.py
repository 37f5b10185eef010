"""The commands of `fanout`, one module per subject."""
