"""From a model's name to its replies: providers, retries, fallbacks, prices, and a scripted model."""
