"""Commands of the service: who may ask it."""
