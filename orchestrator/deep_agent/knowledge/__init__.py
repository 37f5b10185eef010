"""What an agent is told from files: memory and skills."""
