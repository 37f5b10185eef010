"""Processes that read untrusted data: limited from their start, and killed in time.

A parser that reads a decompression bomb blocks its thread, and with it Python's lock, until it
ends. A separate process has limits of memory, processor time and file size from its first
instruction on, yields the processor to others, and can be killed.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ASK_SECONDS = 0.25
"""The interval in which a caller is asked whether a program is still wanted."""

MAX_ANSWER_BYTES = 64 * 1024
"""The longest output of a program that is read: one sentence."""

_BLOCK_BYTES = 512
"""The unit of `ulimit -f` in POSIX."""


class Killed(Exception):
    """A program was killed because it took too long, or because it is no longer wanted."""


@dataclass(frozen=True, kw_only=True)
class ProcessBounds:
    """The limits of one process."""

    memory_bytes: int
    """The size of its address space; macOS has no such limit."""
    cpu_seconds: float
    """The processor time after which it is killed, even if its parent is dead by then."""
    file_bytes: int | None = None
    """The size of each file that it writes; None: no limit."""
    yields: bool = False
    """Whether it yields the processor to others that want it."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that limits itself and then becomes the given one.

        A limit that is lower already stays.
        """
        limits = [
            ("c", 0),
            ("v", self.memory_bytes // 1024),
            ("t", max(1, math.ceil(self.cpu_seconds))),
            *([("f", -(-self.file_bytes // _BLOCK_BYTES))] if self.file_bytes is not None else []),
        ]
        steps = [f"command ulimit -{name} {value} 2>/dev/null" for name, value in limits]
        become = 'exec nice -n 10 "$@"' if self.yields else 'exec "$@"'
        return ["/bin/sh", "-c", "; ".join([*steps, become]), "sh", *argv]


def run_program(
    module: str,
    arguments: Sequence[str],
    bounds: ProcessBounds,
    *,
    seconds: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> tuple[int, str]:
    """Run one of fanout's Python modules, and return its exit code and output; blocks.

    It gets nothing of this process's environment, and its error output is dropped.

    Args:
        module: The module.
        arguments: Its arguments.
        bounds: What it may use.
        seconds: After this time it is killed.
        is_wanted: Asked while it runs; when it returns False, it is killed.

    Raises:
        Killed: It was killed; the text says why.
        OSError: It cannot be started.
    """
    process = subprocess.Popen(  # noqa: S603 - a program of ours
        bounds.command([sys.executable, "-B", "-P", "-m", module, *arguments]),
        # With -B: a limit of the files that it writes would truncate its compiled modules.
        env={"PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + seconds
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=_ASK_SECONDS)
                return process.returncode, output[:MAX_ANSWER_BYTES].decode(errors="replace")
            if not is_wanted():
                raise Killed("It is no longer wanted.")
            if time.monotonic() >= deadline:
                raise Killed(f"It takes more than {seconds:g} seconds.")
    finally:
        kill_group(process)


def import_path() -> str:
    """Return fanout's packages and the absolute folders of PYTHONPATH, without relative ones."""
    root = Path(__file__).absolute().parents[2]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(root), *filter(os.path.isabs, given)])


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs of a process that leads a session, and close its pipes."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with process:  # closes the pipes and waits
        pass
