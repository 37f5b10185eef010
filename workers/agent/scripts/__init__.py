"""The worker of a job that runs a script; start reading in `script_worker.py`."""
