"""`python -m tests.chaos --minutes N --seed S`: everything breaks, nothing is lost."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.chaos.report import Report
from tests.chaos.run import run

EXIT_VIOLATED = 1
EXIT_STOPPED = 130


def main() -> int:
    """The program; 0 only when every proof holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long jobs are submitted")
    parser.add_argument(
        "--seed", type=int, help="replays the plan of an earlier run; default: a new one"
    )
    parser.add_argument("--json", action="store_true", help="one document instead of the report")
    parser.add_argument(
        "--keep",
        type=Path,
        help="a folder for the logs and for the journals of violations; "
        "default: a new one, which is deleted if every proof holds",
    )
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    kept = options.keep or Path(tempfile.mkdtemp(prefix="fanout-chaos-"))
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        try:
            report = asyncio.run(_stoppable(run(Path(folder), seed, options.minutes, kept)))
        except asyncio.CancelledError:
            print("stopped; nothing is left running", file=sys.stderr)
            return EXIT_STOPPED
    print(report.as_json() if options.json else report.in_words())
    if options.keep is None and report.passed:
        shutil.rmtree(kept)
    else:
        print(f"logs and journals: {kept}", file=sys.stderr)
    return 0 if report.passed else EXIT_VIOLATED


async def _stoppable(work: Coroutine[Any, Any, Report]) -> Report:
    """Let Ctrl-C and SIGTERM end the run in order; also one that was started in the background."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
