"""The jobs of remote agents."""
