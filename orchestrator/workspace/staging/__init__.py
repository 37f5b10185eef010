"""Merges into a folder that happen as a whole: staged beside their targets, then moved."""
