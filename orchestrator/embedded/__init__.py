"""Redis and a worker as child processes on one machine, without any set-up."""
