"""Subscriptions to jobs, and the outbox of notifications."""
