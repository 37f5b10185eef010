"""`python -m workers`: start a worker."""

from __future__ import annotations

import argparse
import os
import warnings

from celery.platforms import SecurityWarning

from workers.bootstrap import load_worker_settings
from workers.celery_app import app, node_name


def main() -> None:
    """Start a worker with the settings of the environment and the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run fanout jobs.")
    parser.add_argument("--concurrency", type=int, help="jobs at once in this process")
    parser.add_argument("--queues", help="names of the queues to serve, with commas between them")
    parser.add_argument("--drain", action="store_true", help="on SIGTERM finish running jobs first")
    options = parser.parse_args()
    if options.drain:
        os.environ["FANOUT_WORKER__DRAIN"] = "true"
    if options.concurrency is not None:
        os.environ["FANOUT_WORKER__CONCURRENCY"] = str(
            options.concurrency
        )  # one source for all its readers
    settings, _ = load_worker_settings()
    # Root is normal in a container, and what agents run does not run as this process's user.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    queues = options.queues or settings.worker.queue
    app.worker_main(
        [
            "--quiet",
            "worker",
            f"--hostname={node_name()}",
            f"--queues={queues}",
            "--without-gossip",  # workers know each other through the ledger
            "--without-mingle",
            f"--loglevel={settings.log_level}",
        ],
    )


if __name__ == "__main__":
    main()
