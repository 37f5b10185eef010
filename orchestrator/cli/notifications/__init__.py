"""Options by which commands tell somebody of the end of their jobs."""
