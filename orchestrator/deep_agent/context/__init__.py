"""Keeps a conversation within its model's context window: summaries, and long results in files.

Begin with `summarization.py`, which decides when a summary is written.
"""
