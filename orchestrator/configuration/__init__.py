"""Reads the configuration: settings, agent definitions and their files, log set-up."""
