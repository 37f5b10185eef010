"""Where a job's commands run and its files live."""
