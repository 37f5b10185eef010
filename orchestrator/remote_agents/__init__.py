"""Agents of other services, called by A2A."""
