"""The built-in tools: files, shell, plan.

Begin with `filesystem.py`, which has the file tools as models see them; the other modules do their
work on any backend.
"""
