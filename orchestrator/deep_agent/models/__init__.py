"""From a model's name to its replies.

Providers, retries, fallbacks, prices, and a scripted model.
"""
