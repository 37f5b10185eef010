"""`python -m tests.faults.hanging_worker`: a worker in which calls of chosen jobs hang.

FANOUT_TEST_HANGS is a folder with a pipe `pipe`, which nobody writes to. A job for which a file
with its id is there reads the pipe instead of its script. The worker has four threads for calls.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import structlog

from fanout.orchestrator.deep_agent.models.scripted_model import Script
from fanout.workers import bootstrap
from fanout.workers.__main__ import main
from fanout.workers.upkeep.watchdog import CallThreads

HANGS = Path(os.environ["FANOUT_TEST_HANGS"])
load = Script.load


def hanging(path: Path) -> Script:
    """Load, or read the pipe."""
    job = structlog.contextvars.get_contextvars().get("job")
    if job and (HANGS / job).exists():
        (HANGS / "pipe").read_bytes()
    return load(path)


if __name__ == "__main__":
    Script.load = hanging
    bootstrap.CallThreads = partial(CallThreads, threads=4)
    main()
