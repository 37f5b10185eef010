"""An operator's tools in Python, by the entry points `fanout.tools`.

- `tool.py`: what an agent gets. Each call is a process.
- `program.py`: the program of that process.
"""
