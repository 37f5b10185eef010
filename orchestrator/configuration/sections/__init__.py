"""Sections of the settings that have a module of their own."""
