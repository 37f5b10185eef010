"""Reads an installation as its operator sees it, in bounded steps: workers, queues, running jobs.

It reads only the jobs that it names, and no script blocks Redis meanwhile, so its parts may be of
slightly different moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis

from ..worker_info import WorkerLoad
from .connection import server_time_ms
from .keys import Keys
from .redis_errors import redis_failures
from .registrations import Registrations

MAX_CLASSES = 200
"""The most classes of jobs whose queues are read, and the most tenants and trees at their limit. An
installation has one class for each agent and release; with more, some queues are left out."""
MAX_QUEUES = 1_000
"""The most queues that are read, each a class of a tenant: at 30 µs each a thirtieth of a second.
"""
HEADS = 10
"""The most trees of each queue whose first jobs are read, those that are next in turn: a tenant may
have thousands."""


class QueueHead(NamedTuple):
    """The queue of a tenant's jobs of a class, and the oldest of those that are next in turn."""

    tenant: str
    job_class: str
    """`<agent>:<wire version>`, with a pool `<agent>@<pool>:<wire version>`."""
    jobs: int
    """The number of waiting jobs, at least: each tree that is not among the first counts as one."""
    oldest_seconds: float
    """How long the oldest one has waited since it was submitted."""


class _Lane(NamedTuple):
    tenant: str
    job_class: str
    root: str


class Fleet:
    """Reads the workers and the queues of an installation.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._registrations = Registrations(redis, keys)

    async def workers(self) -> list[WorkerLoad]:
        """Return the living workers, sorted by name."""
        return [worker async for worker in self._registrations.read(WorkerLoad)]

    async def queues(self) -> list[QueueHead]:
        """Return the queues with jobs that wait for a worker, the longest wait first.

        Jobs that are on their way to a worker are in none.
        """
        names = await self._queue_names()
        lanes, jobs = await self._lanes(names)
        heads = await self._pipelined(
            [("ZRANGE", self._lane_key(lane), 0, 0) for lane in lanes]
            + [("ZCARD", self._lane_key(lane)) for lane in lanes]
        )
        ids = heads[: len(lanes)]
        submitted = await self._pipelined(
            [("HGET", self._keys.job(one[0] if one else ""), "submitted_at") for one in ids]
        )
        now = await server_time_ms(self._redis)
        oldest: dict[tuple[str, str], float] = {}
        for lane, size, at in zip(lanes, heads[len(lanes) :], submitted, strict=True):
            if at is None:  # its job was dispatched meanwhile
                continue
            queue = lane.tenant, lane.job_class
            jobs[queue] = jobs.get(queue, 0) + size
            oldest[queue] = min(oldest.get(queue, now), float(at))
        found = [
            QueueHead(*queue, jobs[queue], max(0.0, (now - at) / 1000))
            for queue, at in oldest.items()
        ]
        return sorted(found, key=lambda one: (-one.oldest_seconds, one))

    async def running(self, most: int, tenant: str | None = None) -> list[str]:
        """Return the ids of jobs that are running or on their way to a worker.

        Args:
            most: At most so many.
            tenant: Only those of this tenant; None: of all.
        """
        with redis_failures():
            if tenant is None:
                ids: Any = await self._redis.zrange(self._keys.leases, 0, most - 1)
            else:
                active: Any = self._keys.tenant_active(tenant)
                _, ids = await self._redis.sscan(active, count=most)
        return sorted(ids)[:most]

    async def installation(self) -> str:
        """Return the id of the installation; empty before its first worker has started."""
        with redis_failures():
            return str(await self._redis.get(self._keys.installation) or "")

    async def _queue_names(self) -> list[tuple[str, str]]:
        """Return tenant and class of the queues with trees that take turns."""
        with redis_failures():
            classes: Any = await self._redis.sscan(self._keys.classes, count=MAX_CLASSES)
            full: Any = await self._redis.sscan(self._keys.full_tenants, count=MAX_CLASSES)
        classes, full = sorted(classes[1])[:MAX_CLASSES], sorted(full[1])[:MAX_CLASSES]
        tenants = await self._pipelined(
            [("ZRANGE", self._keys.tenants(one), 0, MAX_CLASSES - 1) for one in classes]
            + [("SMEMBERS", self._keys.tenant_classes(one)) for one in full]
        )
        waiting = [
            (tenant, job_class)
            for job_class, some in zip(classes, tenants[: len(classes)], strict=True)
            for tenant in some
        ]
        at_limit = [
            (tenant, job_class)
            for tenant, some in zip(full, tenants[len(classes) :], strict=True)
            for job_class in some
        ]
        return list(dict.fromkeys([*at_limit, *waiting]))[:MAX_QUEUES]

    async def _lanes(
        self, queues: Sequence[tuple[str, str]]
    ) -> tuple[list[_Lane], dict[tuple[str, str], int]]:
        """Return the first lanes of queues, and how many more trees each queue has."""
        rows = await self._pipelined(
            [("ZRANGE", self._keys.trees(one, tenant), 0, HEADS - 1) for tenant, one in queues]
            + [("ZCARD", self._keys.trees(one, tenant)) for tenant, one in queues]
        )
        trees, sizes = rows[: len(queues)], rows[len(queues) :]
        lanes = [
            _Lane(*queue, root)
            for queue, roots in zip(queues, trees, strict=True)
            for root in roots
        ]
        more = {
            queue: max(0, size - len(roots))
            for queue, roots, size in zip(queues, trees, sizes, strict=True)
        }
        with redis_failures():
            full: Any = await self._redis.sscan(self._keys.full_trees, count=MAX_CLASSES)
        roots = sorted(full[1])[:MAX_CLASSES]
        at_limit = await self._pipelined([("SMEMBERS", self._keys.lanes(root)) for root in roots])
        for root, names in zip(roots, at_limit, strict=True):
            for agent, wire, tenant in (name.split(":", 2) for name in names):
                lanes.append(_Lane(tenant, f"{agent}:{wire}", root))
        return list(dict.fromkeys(lanes)), more

    def _lane_key(self, lane: _Lane) -> str:
        return self._keys.lane(lane.job_class, lane.root, lane.tenant)

    async def _pipelined(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        if not calls:
            return []
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for call in calls:
                    pipe.execute_command(*call)
                return await pipe.execute()
