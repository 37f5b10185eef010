"""Jobs: their models, and their store in Redis; imports no other package of fanout."""
