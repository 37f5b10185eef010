"""The Celery worker's side: claim a job, run its agent in a sandbox, report."""
