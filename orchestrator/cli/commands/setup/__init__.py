"""Commands that set an installation up."""
