"""What clients send: new tasks, and answers."""
