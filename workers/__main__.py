"""`python -m workers`: start a worker."""

from __future__ import annotations

from orchestrator.process_secrets import seal_process

if __name__ == "__main__":
    seal_process()  # before the imports, which take seconds

import argparse
import os
import warnings

from celery.platforms import SecurityWarning

from workers.bootstrap import load_worker_settings
from workers.celery_app import app, node_name


def main() -> None:
    """Start a worker with the settings of the environment and the options of the command line.

    Raises:
        SystemExit: The settings or options are not usable, or the worker has ended.
    """
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run fanout jobs.")
    parser.add_argument("--concurrency", type=int, help="number of jobs that run at the same time")
    parser.add_argument("--queues", help="comma-separated names of the queues to serve")
    parser.add_argument("--drain", action="store_true", help="on SIGTERM, finish running jobs")
    options = parser.parse_args()
    if options.drain:
        os.environ["FANOUT_WORKER__DRAIN"] = "true"
    if options.concurrency is not None:  # set in the environment, which all its readers use
        os.environ["FANOUT_WORKER__CONCURRENCY"] = str(options.concurrency)
    settings, _ = load_worker_settings()
    # Root is normal in a container, and commands of agents do not run as this process's user.
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
