"""Models by name: providers, retries, fallbacks, prices, and a scripted model."""
