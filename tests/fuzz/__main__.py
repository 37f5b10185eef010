"""`python -m tests.fuzz --minutes 5`: fuzzers with new inputs each time, then planted faults."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import planted

EXAMPLES = 2_000
"""Of each fuzzer in one round: a minute of a core."""


def main() -> int:
    """Run rounds until the time is up, or until one fails, which prints its input."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=5.0)
    ends_at = time.monotonic() + 60 * options.parse_args().minutes
    while time.monotonic() < ends_at:
        seed = secrets.randbelow(1 << 32)
        print(f"seed {seed}", flush=True)
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "slow", "--timeout", "600", f"--hypothesis-seed={seed}",
             str(Path(__file__).parent)],
            env={**os.environ, "FUZZ_EXAMPLES": str(EXAMPLES)}, check=False,
        )  # fmt: skip
        if ended.returncode:
            return ended.returncode
    return planted.main()


if __name__ == "__main__":
    sys.exit(main())
