"""The reasons why queued jobs do not run, for a page of records in two round trips."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redis.asyncio import Redis

from ...shortening import short_id
from ..policy import AdmissionPolicy
from ..state import JobRecord, JobState
from ..worker_info import WorkerAbility
from .keys import Keys
from .model_states import ModelStates
from .redis_errors import redis_failures
from .registrations import Registrations

AFTER = "3"
"""The value of `dispatched` of a job that comes after others (COMES_AFTER in common.lua)."""
MAX_LOOKED_AT = 100
"""The most jobs before another that are looked at to name those that have not ended."""
SHOWN_BEFORE = 3
"""The most that are named."""


WAITING_STATES = frozenset({JobState.QUEUED, JobState.WAITING})
"""The states in which a job may wait for a model."""


@dataclass(frozen=True)
class AbleWorkers:
    """The workers that can run the jobs of a wire version and an agent."""

    accepting: Sequence[WorkerAbility]
    unfit: Sequence[WorkerAbility]
    """Those that will accept jobs again when their host is in order."""

    @cached_property
    def are_full(self) -> bool:
        """Whether none of those that accept jobs has a free slot."""
        busy = sum(one.running for one in self.accepting)
        return busy >= sum(one.concurrency for one in self.accepting)


class Workforce:
    """The living workers, grouped by what they can run.

    Thousands of workers are of a few kinds, and thousands of queued jobs of a few classes: each
    class is compared with each kind once.

    Args:
        workers: All living workers.
    """

    def __init__(self, workers: Iterable[WorkerAbility]) -> None:
        self._kinds: dict[tuple[int, int, tuple[str, ...]], list[WorkerAbility]] = {}
        for one in workers:
            kind = one.wire_oldest, one.wire_newest, one.agents
            self._kinds.setdefault(kind, []).append(one)
        self._classes: dict[tuple[int, str], AbleWorkers] = {}
        accepting = [kind for kind, some in self._kinds.items() if any(map(_accepts, some))]
        self.versions = {(oldest, newest) for oldest, newest, _ in accepting}
        """The wire versions, oldest and newest, of the workers that accept jobs."""

    def able(self, wire: int, agent: str) -> AbleWorkers:
        """Return the workers that can run jobs of that wire version and that agent."""
        if (wire, agent) not in self._classes:
            kinds = [some for some in self._kinds.values() if some[0].reads(wire, agent)]
            able = sorted((one for some in kinds for one in some), key=lambda one: one.name)
            self._classes[wire, agent] = AbleWorkers(
                [worker for worker in able if _accepts(worker)],
                [worker for worker in able if worker.unfit],
            )
        return self._classes[wire, agent]


def _accepts(worker: WorkerAbility) -> bool:
    return not worker.draining


@dataclass(frozen=True)
class Occupancy:
    """The admission policy, and the slots that are used of its limits."""

    policy: AdmissionPolicy
    workforce: Workforce
    active: Mapping[str, int]
    """Key of a tree, tenant or agent -> the number of its jobs in transit or running."""
    sent: Collection[str]
    """The jobs in transit to a worker."""
    unread_by: Mapping[str, Collection[str]]
    """Job id -> the names of the workers that could not read it, or not open its sandbox."""
    refused: Collection[str]
    """The jobs whose sandbox a host could not open."""
    starved: Collection[str]
    """The jobs that were given back because Redis had no memory left."""
    keys: Keys
    before: Mapping[str, str]
    """Job id -> the jobs whose end it awaits, as a text for people."""

    def able(self, record: JobRecord) -> AbleWorkers:
        """Return the workers that know a queued job's wire version and agent."""
        return self.workforce.able(record.wire, record.agent)

    def untried(self, record: JobRecord) -> AbleWorkers:
        """Return those of them that have not failed to read it, or to open its sandbox."""
        able, failed = self.able(record), self.unread_by[record.id]
        if not failed:
            return able
        return AbleWorkers([one for one in able.accepting if one.name not in failed], able.unfit)


class WaitingReasons:
    """Adds to queued jobs why they wait; it reads the workers once, for any number of jobs.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._models = ModelStates(redis, keys)
        self._workforce: Workforce | None = None

    async def explain(self, records: list[JobRecord]) -> list[JobRecord]:
        """Return the records of a page, with the reason why queued jobs wait.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        records = await self.with_models(records)
        if not any(record.state is JobState.QUEUED for record in records):
            return records
        if self._workforce is None:
            read = Registrations(self._redis, self._keys).read(WorkerAbility)
            self._workforce = Workforce([worker async for worker in read])
        occupied = await occupancy(self._redis, self._keys, records, self._workforce)
        return [
            record.model_copy(
                update={"waiting_for": waiting_reason(record, occupied) or record.waiting_for}
            )
            for record in records
        ]

    async def with_models(self, records: list[JobRecord]) -> list[JobRecord]:
        """Return the records, with the state of the model for which jobs wait as it is now.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        waiting = [record.id for record in records if record.state in WAITING_STATES]
        if not waiting:
            return records
        closed = await self._models.awaited(waiting)
        if not closed:
            return records
        return [
            record.model_copy(
                update={
                    "waiting_for": closed[record.id].sentence,
                    "waits_until": closed[record.id].until,
                }
            )
            if record.id in closed
            else record
            for record in records
        ]


async def occupancy(
    redis: Redis, keys: Keys, records: Iterable[JobRecord], workforce: Workforce
) -> Occupancy:
    """Return what `waiting_reason` needs for the queued jobs among the records.

    Args:
        redis: The client.
        keys: The key names.
        records: The records of a page, of any state.
        workforce: The living workers.

    Raises:
        LedgerUnavailable: Redis does not respond.
    """
    queued = [record for record in records if record.state is JobState.QUEUED]
    sets = sorted({key for record in queued for key in _sets(keys, record)})
    with redis_failures():
        async with redis.pipeline(transaction=False) as pipe:
            pipe.hget(keys.policy, "json")
            for key in sets:
                pipe.scard(key)
            for record in queued:
                pipe.hmget(keys.job(record.id), ["dispatched", "unread_by", "refusals", "starved"])
            policy, *counted = await pipe.execute()
    fields: list[Any] = counted[len(sets) :]
    later = [record for record, (sent, *_) in zip(queued, fields, strict=True) if sent == AFTER]
    return Occupancy(
        policy=AdmissionPolicy.read(policy) if policy else AdmissionPolicy(),
        workforce=workforce,
        active=dict(zip(sets, counted, strict=False)),
        sent={record.id for record, (sent, *_) in zip(queued, fields, strict=True) if sent == "1"},
        unread_by={
            record.id: (names or "").split()
            for record, (_, names, *_) in zip(queued, fields, strict=True)
        },
        refused={
            record.id for record, (_, _, count, _) in zip(queued, fields, strict=True) if count
        },
        starved={record.id for record, (*_, since) in zip(queued, fields, strict=True) if since},
        keys=keys,
        before=await _predecessors(redis, keys, later),
    )


async def _predecessors(
    redis: Redis, keys: Keys, records: Sequence[JobRecord]
) -> Mapping[str, str]:
    """Return the jobs that these jobs come after and that have not ended, as texts."""
    if not records:
        return {}
    with redis_failures():
        async with redis.pipeline(transaction=False) as pipe:
            for record in records:
                for key in (keys.after(record.id), keys.unlinked(record.id)):
                    pipe.scard(key)
                    pipe.smismember(key, list(record.after[:MAX_LOOKED_AT]) or [""])
            found: Any = await pipe.execute()
    waits = list(zip(records, *[iter(found)] * 4, strict=True))
    open_ = {
        record.id: [
            one for one, *flags in zip(record.after, linked, unlinked, strict=False) if any(flags)
        ][:SHOWN_BEFORE]
        for record, _, linked, _, unlinked in waits
    }
    names = await _names(redis, keys, {one for some in open_.values() for one in some})
    return {
        record.id: _listed(linked + unlinked, [names[one] for one in open_[record.id]])
        for record, linked, _, unlinked, _ in waits
    }


async def _names(redis: Redis, keys: Keys, job_ids: Collection[str]) -> Mapping[str, str]:
    """Return what jobs are called: their names, or their ids."""
    with redis_failures():
        async with redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(keys.job(job_id), "name")
            found = await pipe.execute()
    return {job_id: name or short_id(job_id) for job_id, name in zip(job_ids, found, strict=True)}


def _listed(count: int, names: Sequence[str]) -> str:
    more = ["…"] if count > len(names) else []
    return f"the end of {count:,} job{'' if count == 1 else 's'}: {', '.join([*names, *more])}"


def waiting_reason(record: JobRecord, occupied: Occupancy) -> str | None:
    """Return what a queued job waits for, as a text for people; None for other jobs.

    Args:
        record: The job.
        occupied: What `occupancy` returned for records that include the job's.
    """
    if record.state is not JobState.QUEUED or record.waits_until is not None:
        return None
    if record.id in occupied.sent:
        return "the worker that it was sent to"
    if record.id in occupied.before:
        return occupied.before[record.id]
    if record.id in occupied.starved:
        return "memory in Redis: it was given back when none was left"
    return (
        _no_worker(record, occupied)
        or _limit_reached(record, occupied)
        or _its_turn(record, occupied)
    )


def _sets(keys: Keys, record: JobRecord) -> tuple[str, str, str]:
    return (
        keys.tenant_active(record.tenant),
        keys.agent_active(record.agent),
        keys.active(record.root_id),
    )


def _no_worker(record: JobRecord, occupied: Occupancy) -> str | None:
    able, versions = occupied.able(record), occupied.workforce.versions
    if able.unfit and not able.accepting:
        first, others = able.unfit[0], len(able.unfit) - 1
        return f"a fit worker: on {first.name}{f' (and {others} others)' if others else ''} {first.unfit}"
    if not versions:
        return "a worker: none is running"
    if not any(oldest <= record.wire <= newest for oldest, newest in versions):
        known = sorted(f"{oldest} to {newest}" for oldest, newest in versions)
        age = "a newer" if any(newest < record.wire for _, newest in versions) else "an older"
        return (
            f"{age} worker: it needs wire version {record.wire}, the living workers know "
            + " and ".join(known)
        )
    if not able.accepting:
        return f"agent {record.agent}, which no worker has read yet"
    if not occupied.untried(record).accepting and record.id in occupied.refused:
        return "another host: those that have tried could not open its sandbox"
    if not occupied.untried(record).accepting:
        return "a newer worker: the living ones cannot read it"
    return None


def _limit_reached(record: JobRecord, occupied: Occupancy) -> str | None:
    policy = occupied.policy
    limits = policy.tenant_limit(record.tenant), policy.agents.get(record.agent), policy.tree_jobs
    names = "tenant", "agent", "tree"
    for name, key, limit in zip(names, _sets(occupied.keys, record), limits, strict=True):
        running = occupied.active[key]
        if limit and running >= limit:
            return f"its {name}'s limit ({running} of {limit} jobs run)"
    return None


def _its_turn(record: JobRecord, occupied: Occupancy) -> str:
    return "a free slot on a worker" if occupied.untried(record).are_full else "its turn"
