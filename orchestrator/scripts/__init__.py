"""Scripts: programs that call agents, as durable as a job; start reading in `program.py`."""
