"""Calls that a person decides on."""
