"""Files in an agent's instruction: memory and skills."""
