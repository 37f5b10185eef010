"""What a client's model can call and read."""
