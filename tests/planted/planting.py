"""Puts faults into copies of this repository, and runs the tests that have to find them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.forked import REPOSITORY

TESTS_FAILED = 1
"""The exit code of pytest when it has run, and a test has failed."""
AT_ONCE = 2
MAX_SECONDS = 600
"""Of one run of tests: on a busy machine the slowest takes a minute."""


@dataclass(frozen=True)
class Fault:
    """A change of one file, and the test that has to fail with it."""

    what: str
    file: str
    before: str
    """A text that the file has once."""
    after: str
    test: str
    """As on pytest's command line."""

    def text(self) -> str:
        """Return the file's text with the fault.

        Raises:
            LookupError: The product has changed, so that the fault cannot be put into it.
        """
        text = (REPOSITORY / self.file).read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise LookupError(f"{self.file} does not have {self.before!r} once.")
        return text.replace(self.before, self.after)


@dataclass(frozen=True)
class Finding:
    """What came of one run of tests."""

    exit_code: int
    seconds: float
    printed: str


def print_findings(faults: Sequence[Fault]) -> int:
    """Print a table of faults and whether they are found; return how many are not.

    The tests have to pass without a fault, or a failure would say nothing.
    """
    tests = sorted({fault.test for fault in faults})
    sound = _run(None, tests)
    if sound.exit_code:
        print(f"without a fault, tests fail:\n{sound.printed}")
        return len(faults)
    print(f"without a fault, all tests pass  {sound.seconds:5.1f} s", flush=True)
    missed = 0
    with ThreadPoolExecutor(AT_ONCE) as runs:
        findings = runs.map(lambda fault: _run(fault, [fault.test]), faults)
        for number, (fault, finding) in enumerate(zip(faults, findings, strict=True), start=1):
            is_found = finding.exit_code == TESTS_FAILED
            missed += not is_found
            word = "found" if is_found else "MISSED"
            print(f"{number:2}  {word:6}  {finding.seconds:5.1f} s  {fault.what}", flush=True)
            print(f"{'':22}{fault.test}", flush=True)
            if finding.exit_code not in (0, TESTS_FAILED):
                print(finding.printed)
    print(f"{len(faults) - missed} of {len(faults)} planted faults found")
    return missed


def _run(fault: Fault | None, tests: Iterable[str]) -> Finding:
    began = time.monotonic()
    with _copy() as copy:
        if fault is not None:
            (copy / fault.file).write_text(fault.text(), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *("-n", "0", "-x", "-m", "", "--tb=line"),
             *("-p", "no:cacheprovider"), *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MAX_SECONDS, check=False,
        )  # fmt: skip
    return Finding(ended.returncode, time.monotonic() - began, ended.stdout + ended.stderr)


@contextmanager
def _copy() -> Iterator[Path]:
    """Copy the repository's files as they are now; the copy has the same history."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder)
        for name in filter(None, listed.stdout.split("\0")):
            if os.path.lexists(REPOSITORY / name):  # it may be deleted and not committed
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, copy / name, follow_symlinks=False)
        (copy / ".git").symlink_to(REPOSITORY / ".git")
        yield copy
