"""Who asks the service, and what they may do."""
