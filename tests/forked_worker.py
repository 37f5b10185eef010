"""Workers forked from one process that has imported what all of them import.

A start costs three seconds of processor time, nearly all of it imports; a suite with a hundred of
them waits long for these. What runs is the same: a process group, environment, log and command line
of its own.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    # The last three are imported late, by every worker all the same.
    [
        "workers.celery_app",
        "celery.bin.celery",
        "celery.apps.worker",
        "google.adk.workflow._workflow",
    ]
)


class ForkedProcess:
    """A forked child with the face of `subprocess.Popen`."""

    def __init__(
        self, module: str, arguments: list[str], environment: dict[str, str], log: Path
    ) -> None:
        self._process: BaseProcess = FORKS.Process(
            target=_run_module, args=(module, arguments, environment, log), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run_module(module: str, arguments: list[str], environment: dict[str, str], log: Path) -> None:
    """What `python -m module arguments` does in a new session, with all output in `log`."""
    os.setsid()
    os.chdir(REPOSITORY)
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends its children without them
