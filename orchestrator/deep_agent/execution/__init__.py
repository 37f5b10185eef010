"""Where an agent's commands and code run, if not on its backend."""
