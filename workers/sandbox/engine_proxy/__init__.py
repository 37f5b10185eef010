"""A proxy in front of a Docker engine that passes what workers call and nothing else."""
