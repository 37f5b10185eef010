"""Removal of closed sandboxes, in the background and a few at a time, and of abandoned ones.

The processes of a sandbox are dead when it is closed; what is left of it, an idle resident in its
container, needs the engine, which must not have hundreds of containers that end at once: Docker
20.10 does not survive that. What dead workers left is found by label, and each thing is removed
separately: one that the engine fails to remove, or removes slowly, delays none of the others, and
is retried in the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from fanout.orchestrator.jobs.failures import SandboxFailure

from ..protocol import IsLive
from ..resident.client import ResidentClient
from .engine import Engine
from .naming import (
    COMMAND,
    EXPIRES,
    JOB,
    PROCESS,
    ROLE,
    START_SECONDS,
    WARM,
    WORKER,
    Names,
)
from .steward_client import Steward

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
"""How long a worker that stops continues to remove: half of the time that it has for its end."""
SILENT_SECONDS = 8.0
"""How long a worker must have been missing before its containers are removed: after an outage of
Redis, all of them are missing for a moment. With the six seconds for which it counts as living and
a round of the reaper, its containers are removed 20 s after its death."""
STEP_SECONDS = 15.0
"""How long one removal may delay a round; the engine may continue it."""
WARM_VOLUME_SECONDS = 15.0
"""How long a volume of a sandbox that is started ahead may be without a container: the engine makes
both in one call. If it takes longer, that start fails, and no job has lost anything."""
PARALLEL_REMOVALS = 4
"""The most removals at once: starting sandboxes needs the engine, too."""

Removal = Callable[[], Awaitable[bool]]
LivingWorkers = Callable[[], Awaitable[Collection[str]]]


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


class Leftovers:
    """Removes an installation's containers, volumes and files that will not be used again.

    Running containers of a dead worker end by themselves, with their streams, if they can. What
    remains are containers that were created and never started, that are paused or hang, or whose
    job ended elsewhere; volumes, and files.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        living_workers: LivingWorkers | None,
        in_progress: Callable[[], set[str]] = set,
    ) -> None:
        """Make it without I/O.

        Args:
            engine: the engine.
            names: those of this worker.
            living_workers: returns the names of the workers known to be alive; None when that is
                unknown.
            in_progress: returns the names, or ids, of the containers and volumes that this worker
                removes already.
        """
        self._engine = engine
        self._names = names
        self._living_workers = living_workers
        self._in_progress = in_progress
        self._missing_since: dict[str, float] = {}
        self._slots = asyncio.Semaphore(PARALLEL_REMOVALS)

    async def remove(
        self, steward: Callable[[], Awaitable[Steward]], is_live: IsLive, keeps_files: IsLive
    ) -> int:
        """Remove what can be removed now.

        Args:
            steward: returns the running steward.
            is_live: whether a job may still use its files.
            keeps_files: whether the files of a job that is not live are needed all the same.

        Returns:
            The number of things removed.

        Raises:
            SandboxFailure: the engine does not answer.
        """
        known: dict[str, bool] = {}

        async def ended(labels: dict[str, str]) -> bool:
            """Return whether the job that some labels name has ended; look each job up once."""
            job = labels.get(JOB)
            if job is not None and job not in known:
                known[job] = not await is_live(job)
            return job is not None and known[job]

        running = await steward()
        containers = await self._containers(running)
        volumes = await self._volumes()
        silent = await self._silent_workers([*containers, *volumes])
        useless = [
            each
            for each in containers
            if self._in_progress().isdisjoint((_name(each), each["Id"]))
            and (self._is_useless(each, silent) or await ended(each["Labels"]))
        ]
        removed = await self._each(
            [(_name(each), partial(self._engine.remove_container, each["Id"])) for each in useless]
        )
        containers = await self._containers(running)
        code = self._names.code(running.code_id)
        stale = [
            volume["Name"]
            for volume in volumes
            if (volume["Labels"].get(ROLE) == "code" and volume["Name"] != code)
            or _is_forgotten(volume["Labels"], containers, silent)
            or await ended(volume["Labels"])
        ]
        removed += await self._each(
            [(name, partial(self._engine.remove_volume, name)) for name in stale]
        )
        labels = [each["Labels"] for each in containers]
        used = {each.get(JOB) for each in labels}
        old = [
            job
            for job in await running.jobs()
            if job not in used and await ended({JOB: job}) and not await keeps_files(job)
        ]
        removed += await self._each([(job, partial(running.delete, job)) for job in old])
        warm = set(await running.warm(START_SECONDS)) - {each.get(WARM) for each in labels}
        return removed + await self._each(
            [(each, partial(running.delete, each, ahead=True)) for each in warm]
        )

    async def _containers(self, steward: Steward) -> list[dict[str, Any]]:
        """Return the installation's containers; one that a job has adopted has the job's label."""
        containers = await self._engine.containers([self._names.of_installation])
        if not any(WARM in each["Labels"] for each in containers):
            return containers
        adopted = await steward.adopted(await steward.jobs())
        jobs = {warm: job for job, warm in adopted.items()}
        for each in containers:
            if (job := jobs.get(each["Labels"].get(WARM, ""))) is not None:
                each["Labels"][JOB] = job
        return containers

    async def _volumes(self) -> list[dict[str, Any]]:
        """Return the installation's volumes that are not being removed already."""
        volumes = await self._engine.volumes(self._names.of_installation)
        return [volume for volume in volumes if volume["Name"] not in self._in_progress()]

    def _is_useless(self, container: dict[str, Any], silent: Collection[str]) -> bool:
        """Return whether a container cannot be used any more, whatever its job's state."""
        labels, state = container["Labels"], container["State"]
        of_former_self = (
            labels.get(WORKER) == self._names.worker and labels.get(PROCESS) != self._names.process
        )
        was_never_started = state == "created" and float(labels.get(EXPIRES, 0)) < time.time()
        is_dead = state in {"exited", "dead"}
        return is_dead or was_never_started or of_former_self or labels.get(WORKER) in silent

    async def _silent_workers(self, left: list[dict[str, Any]]) -> Collection[str]:
        """Return the workers with something here that have been missing long enough to be dead.

        Args:
            left: containers and volumes.
        """
        if self._living_workers is None:
            return ()
        missing = {each["Labels"].get(WORKER, "") for each in left} - {self._names.worker}
        missing = {worker for worker in missing if not worker.startswith(COMMAND)}
        if missing:
            missing -= set(await self._living_workers())
        now = time.monotonic()
        self._missing_since = {worker: self._missing_since.get(worker, now) for worker in missing}
        return [
            worker for worker, since in self._missing_since.items() if now - since >= SILENT_SECONDS
        ]

    async def _each(self, removals: list[tuple[str, Removal]]) -> int:
        """Run removals, several at a time; return how many removed something."""
        return sum(await asyncio.gather(*(self._one(name, removal) for name, removal in removals)))

    async def _one(self, name: str, removal: Removal) -> bool:
        async with self._slots:
            removing = asyncio.ensure_future(removal())
            done, _ = await asyncio.wait({removing}, timeout=STEP_SECONDS)
            if not done:  # the engine cannot be interrupted
                removing.add_done_callback(_forget)
                log.warning("leftover not removed yet", name=name, after_seconds=STEP_SECONDS)
                return False
            try:
                return removing.result()
            except SandboxFailure as error:
                log.warning("leftover not removed, will be retried", name=name, error=str(error))
                return False


def _is_forgotten(
    labels: dict[str, str], containers: list[dict[str, Any]], silent: Collection[str]
) -> bool:
    """Return whether a volume is a warm sandbox's that has no container, and will have none."""
    made_at = float(labels.get(EXPIRES, 0)) - START_SECONDS
    is_over = time.time() - made_at > WARM_VOLUME_SECONDS or labels.get(WORKER) in silent
    return (
        WARM in labels
        and is_over
        and labels[WARM] not in {each["Labels"].get(WARM) for each in containers}
    )


def _name(container: dict[str, Any]) -> str:
    return str((container.get("Names") or [container["Id"]])[0]).removeprefix("/")


def _forget(removal: asyncio.Future[bool]) -> None:
    """Retrieve a removal's late result, or asyncio would log its exception."""
    if not removal.cancelled():
        removal.exception()
