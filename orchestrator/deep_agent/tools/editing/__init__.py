"""Changing the text of files: replacements and patches."""
