"""Reads the configuration: settings, agent definitions, log set-up."""
