"""Tells people and programs what happens to jobs: webhooks, and the installation's hook."""
