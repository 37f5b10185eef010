"""A worker as a supervisor runs it: whatever ends it, it is started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.proxy import Proxy
from tests.faults.releases import Release
from tests.services import REPOSITORY

RESTART_SECONDS = 1.0
"""Before a worker that ended is started again, as systemd does by default or a little slower."""
END_SECONDS = 40.0


def faketime_library() -> Path | None:
    """libfaketime, from Debian's package `faketime`; None where it is not installed."""
    return next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


@dataclass
class Life:
    """One process of a worker."""

    name: str
    """As the ledger knows it."""
    began: float
    ended: float | None = None
    exit_code: int | None = None


class SupervisedWorker:
    """A worker's place: its way to Redis, and one process after another."""

    def __init__(
        self, proxy: Proxy, environment: Mapping[str, str], concurrency: int, log: Path
    ) -> None:
        self.proxy = proxy
        self.clock: str | None = None
        """What libfaketime shows the next process; None is the machine's time."""
        self.release: Release | None = None
        """The release of the next process; None is this one."""
        self.lives: list[Life] = []
        self._environment = environment
        self._concurrency = concurrency
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The present process's."""
        return self.lives[-1].name

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def send(self, number: signal.Signals) -> None:
        """Send the present process a signal, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self) -> int | None:
        """SIGTERM, and no new process; the exit code, None when it had to be killed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None:
            return 0
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                return await process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await process.wait()
            return None

    async def _run(self) -> None:
        while True:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(
                        sys.executable,
                        "-m",
                        "fanout.workers",
                        "--concurrency",
                        str(self._concurrency),
                    ),
                    env={
                        **self._environment,
                        **self._clock_settings(),
                        **(self.release.environment if self.release else {}),
                    },
                    cwd=REPOSITORY,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            life = Life(f"{socket.gethostname()}-{self._process.pid}", time.time())
            self.lives.append(life)
            life.exit_code = await self._process.wait()
            life.ended = time.time()
            await asyncio.sleep(RESTART_SECONDS)

    def _clock_settings(self) -> dict[str, str]:
        library = faketime_library()
        if self.clock is None or library is None:
            return {}
        # Only the time of day is wrong: monotonic clocks never jump, and files have the file
        # system's times.
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME": self.clock,
            # It would read its settings again, which a worker takes out of its environment.
            "FAKETIME_CACHE_DURATION": "1000000",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
