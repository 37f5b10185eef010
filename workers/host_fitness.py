"""Whether this host can open sandboxes, found out before its jobs do.

A host whose engine is away fails fast and is always free, so it would take the jobs of all others.
It therefore registers as unfit as soon as its engine does not answer, or a sandbox that no job has
cannot be opened, and takes no jobs until one can. What an attempt meets in between is the host's
fault: the job is given back, and no attempt is used up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog

from fanout.orchestrator.jobs.failures import JobFailure

from .sandbox import HostFault, SandboxProvider, SandboxSpec

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks whether what opens sandboxes answers: a look costs a millisecond."""
FIRST_PAUSE_SECONDS = 1.0
"""Between two looks at an unfit host; each later pause is twice as long."""
LONGEST_PAUSE_SECONDS = 30.0
"""A repaired host takes jobs again after that time at the latest."""


class HostFitness:
    """Looks after one host's ability to open sandboxes.

    Args:
        provider: Opens them.
        rehearsal: A sandbox as most jobs have it.
        on_change: Is awaited when the host has become unfit, or fit again: what its jobs meet is
            judged after that.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        rehearsal: SandboxSpec,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._provider = provider
        self._rehearsal = rehearsal
        self._on_change = on_change
        self._looking = asyncio.Lock()
        self._looks = {False: 0, True: 0}
        """How many have begun, with and without a rehearsal."""
        self._since = ""
        self.unfit = ""
        """Why and since when no sandbox can be opened, for people; empty when one can."""

    async def find_fault(
        self, failure: JobFailure, job_id: str, *, was_opened: bool
    ) -> HostFault | None:
        """Return that the host is the cause of an attempt's failure, if it is.

        It is when it cannot open a sandbox now, or has lost the job's sandbox together with what it
        runs sandboxes by.

        Args:
            failure: What the attempt met.
            job_id: Its job.
            was_opened: Whether the attempt had its sandbox.
        """
        if not failure.depends_on_host:
            return None
        if not self.unfit:
            await self._look(thorough=not was_opened)
        if self.unfit:
            return HostFault(f"Its host failed: {self.unfit}.", failure)
        if self._provider.was_lost(job_id):
            return HostFault("Its host failed: its engine ended, with all sandboxes.", failure)
        return None

    async def run(self) -> None:
        """Look until cancelled."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            await self._look(thorough=bool(self.unfit))
            if self.unfit:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, *, thorough: bool) -> None:
        """Look once; who asks while another look has to begin shares it."""
        before = self._looks[thorough]
        async with self._looking:
            if self._looks[thorough] > before:
                return
            self._looks[False] += 1
            self._looks[True] += thorough
            try:
                await self._provider.pulse()
                if thorough:
                    await self._provider.rehearse(self._rehearsal)
            except JobFailure as failure:
                await self._note(str(failure))
            except Exception:
                log.exception("whether this host opens sandboxes is not known")
            else:
                await self._note("")

    async def _note(self, why: str) -> None:
        """Note why no sandbox can be opened; empty: one can."""
        was_fit = not self.unfit
        if was_fit:
            self._since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        since = self._since
        self.unfit = why and f"no sandbox could be opened since {since}: {why.rstrip('.')}"
        if was_fit and why:
            log.error("this host cannot open sandboxes, and takes no jobs", why=why)
        elif why or was_fit:
            return
        else:
            log.warning("this host opens sandboxes, and takes jobs again")
        await self._on_change()
