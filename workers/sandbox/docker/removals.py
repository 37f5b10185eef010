"""Removal of closed sandboxes from the engine, in the background and a few at a time.

The processes of a sandbox are dead when it is closed; what is left of it, an idle resident in its
container, needs the engine, which must not have hundreds of containers that end at once: Docker
20.10 does not survive that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.resident.client import ResidentClient

log = structlog.get_logger(__name__)

END_SECONDS = 0.5
"""How long a resident may take to kill everything, which takes milliseconds; then the engine kills
it."""
LEAVE_SECONDS = 1.5
"""How long the end of an attempt waits for an engine that has to kill or remove a container, which
takes a tenth of a second. An engine that hangs must not delay a job's cancellation."""
AT_ONCE = 2
"""Removals at once: each takes the engine a tenth of a second of a processor, and starts and
commands need it, too."""
YIELD_SECONDS = 2.0
"""The longest that a removal lets what jobs wait for go first: as many containers are left then as
end in that time."""
QUIET_SECONDS = 0.25
"""Without a closed sandbox for so long, no more jobs end together, also of the worker's other
processes, which share the engine: the end of each, whose changes are collected, takes less."""
_LOOK_SECONDS = 0.05
"""Between two looks whether jobs still wait; a start takes a tenth of a second."""
FINISH_SECONDS = 5.0
"""How long a worker that stops goes on removing: half of the time that it has for its end."""


@dataclass(eq=False)
class _Removal:
    """What is to be removed of one sandbox."""

    container: str
    volumes: Sequence[str]
    client: ResidentClient | None
    asked_at: float = field(default_factory=time.monotonic, init=False)
    running: asyncio.Task[None] | None = field(default=None, init=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def names(self) -> set[str]:
        return {self.container, *self.volumes}

    async def end(self) -> None:
        """End the resident: its container ends with it."""
        if self.client is not None:
            await self.client.close()


class Removals:
    """The removals of one worker: those that run, and those that wait for their turn."""

    def __init__(self, engine: Engine, starts_wait: Callable[[], bool]) -> None:
        """Make it.

        Args:
            engine: where it removes.
            starts_wait: returns whether a job waits for a start that waits for others.
        """
        self._engine = engine
        self._starts_wait = starts_wait
        self._known: set[_Removal] = set()
        self._waiting: deque[_Removal] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._finishing = False

    @property
    def names(self) -> set[str]:
        """The containers and volumes that are being removed, or will be."""
        return set().union(*(removal.names for removal in self._known))

    async def remove(
        self,
        container: str,
        volumes: Sequence[str],
        client: ResidentClient | None = None,
    ) -> None:
        """Kill a sandbox's processes, and begin to remove its container and volumes.

        Args:
            container: its name.
            volumes: those that its container mounts.
            client: of its resident; None when it may not have started.
        """
        removal = _Removal(container, volumes, client)
        self._known.add(removal)
        if client is not None and await client.end(END_SECONDS):
            self._waiting.append(removal)
            self._work()
            return
        removing = self._begin(removal)  # it kills, too
        await asyncio.wait({removing}, timeout=LEAVE_SECONDS)

    def concern(self, names: Collection[str]) -> bool:
        """Return whether something with one of these names is being removed, or will be."""
        return bool(self._with(names))

    async def settle(self, names: Collection[str]) -> None:
        """Remove at once what has one of these names, if it is to be removed."""
        await asyncio.gather(*(self._begin(removal) for removal in self._with(names)))

    async def wait_for(self, names: Collection[str]) -> None:
        """Wait until what has one of these names is removed in its turn."""
        for removal in self._with(names):
            await removal.ended.wait()

    async def wait(self) -> bool:
        """Wait until nothing is left to remove, but no longer than `FINISH_SECONDS`.

        Returns:
            Whether nothing is left.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                for removal in list(self._known):
                    await removal.ended.wait()
        return not self._known

    async def finish(self) -> None:
        """End the removals: what is left then is removed by the next reaper."""
        self._finishing = True
        if not await self.wait():
            self._waiting.clear()
            await asyncio.gather(*(removal.end() for removal in self._known))
            log.warning("sandboxes left to the reaper", count=len(self._known))

    def _with(self, names: Collection[str]) -> list[_Removal]:
        return [removal for removal in self._known if not removal.names.isdisjoint(names)]

    def _work(self) -> None:
        if len(self._workers) < AT_ONCE:
            worker = asyncio.create_task(self._remove_waiting())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _remove_waiting(self) -> None:
        while self._waiting:
            if self._yields(self._waiting[0]):
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                await self._begin(self._waiting.popleft())

    def _yields(self, removal: _Removal) -> bool:
        """Return whether a removal lets starts and ends of jobs go first."""
        now = time.monotonic()
        if self._finishing or now >= removal.asked_at + YIELD_SECONDS:
            return False
        jobs_end = now < self._waiting[-1].asked_at + QUIET_SECONDS
        return jobs_end or self._starts_wait()

    def _begin(self, removal: _Removal) -> asyncio.Task[None]:
        if removal.running is None:
            removal.running = asyncio.create_task(self._remove(removal))
        return removal.running

    async def _remove(self, removal: _Removal) -> None:
        try:
            await removal.end()
            await self._engine.remove_container(removal.container)
            for volume in removal.volumes:
                await self._engine.remove_volume(volume)
        except SandboxFailure as error:
            log.warning(
                "sandbox not removed, the reaper will retry",
                name=removal.container,
                error=str(error),
            )
        finally:
            self._known.discard(removal)
            removal.ended.set()
