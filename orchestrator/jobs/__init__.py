"""Jobs: their models, and their store in Redis; imports nothing of ours but itself."""
