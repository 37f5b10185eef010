"""Removal of what dead workers left on an engine, found by label.

Each thing is removed separately: one that the engine fails to remove, or removes slowly, delays
none of the others, and is retried in the next round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

import structlog

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import (
    EXPIRES,
    JOB,
    PROCESS,
    ROLE,
    START_SECONDS,
    WARM,
    WORKER,
    Names,
)
from fanout.workers.sandbox.docker.steward_client import Steward
from fanout.workers.sandbox.protocol import IsLive

log = structlog.get_logger(__name__)

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
"""At once: starting sandboxes needs the engine, too."""

Removal = Callable[[], Awaitable[bool]]
LivingWorkers = Callable[[], Awaitable[Collection[str]]]


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
