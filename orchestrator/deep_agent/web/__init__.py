"""Tools that read the web, for agents that research in this process."""
