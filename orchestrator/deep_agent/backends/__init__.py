"""Backends: where an agent's files are and its commands run.

Begin with `protocol.py`, then `state.py`. Every implementation passes the same tests
(`tests/contract`), also sandboxes (`workers/sandbox/protocol.py`).
"""
