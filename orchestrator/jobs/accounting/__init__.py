"""What jobs have used, and how it is summed."""
