"""Commands that bring fanout into other programs."""
