"""`python -m tests.chaos --minutes N --seed S`: everything breaks, nothing is lost."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.report import Report
from tests.chaos.run import run

EXIT_VIOLATED = 1


def main() -> int:
    """The program; 0 only when every proof holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long jobs are submitted")
    parser.add_argument("--seed", type=int, help="replays the plan of an earlier run; default: a new one")
    parser.add_argument("--json", action="store_true", help="one document instead of the report")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and for the journals of violations")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        report: Report = asyncio.run(run(Path(folder), seed, options.minutes, options.keep))
    print(report.as_json() if options.json else report.in_words())
    return 0 if report.passed else EXIT_VIOLATED


if __name__ == "__main__":
    sys.exit(main())
