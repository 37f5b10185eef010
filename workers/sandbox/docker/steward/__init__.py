"""What the client of a steward consists of: its program, and what it answers."""
