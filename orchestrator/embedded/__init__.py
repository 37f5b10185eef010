"""Redis and a worker on one machine, with no set-up."""
