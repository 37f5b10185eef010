"""What clients are shown: tasks, their updates, and what they wait for."""
