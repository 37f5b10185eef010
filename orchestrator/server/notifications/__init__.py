"""Notifies people and programs about jobs: webhooks, and the installation's hook."""
