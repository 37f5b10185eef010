"""The reasons why queued jobs do not run, for a page of records in two round trips."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.redis_errors import redis_failures
from fanout.orchestrator.jobs.worker_info import WorkerInfo


@dataclass(frozen=True)
class Occupancy:
    """The admission policy, and the slots that are used of its limits."""

    policy: AdmissionPolicy
    workers: Collection[WorkerInfo]
    """The workers that accept jobs."""
    unfit: Collection[WorkerInfo]
    """Those that will accept jobs again when their host is in order."""
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

    def workers_for(self, record: JobRecord) -> list[WorkerInfo]:
        """Return the workers that can run a queued job."""
        unread_by = self.unread_by[record.id]
        return [
            worker
            for worker in self.workers
            if worker.reads(record.wire, record.agent) and worker.name not in unread_by
        ]


async def occupancy(
    redis: Redis, keys: Keys, records: Iterable[JobRecord], workers: Collection[WorkerInfo]
) -> Occupancy:
    """Return what `waiting_reason` needs for the queued jobs among the records.

    Args:
        redis: The client.
        keys: The key names.
        records: The records of a page, of any state.
        workers: The living workers.

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
    return Occupancy(
        policy=AdmissionPolicy.read(policy) if policy else AdmissionPolicy(),
        workers=[worker for worker in workers if not worker.draining],
        unfit=[worker for worker in workers if worker.unfit],
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
    )


def waiting_reason(record: JobRecord, occupied: Occupancy) -> str | None:
    """Return what a queued job waits for, as a text for people; None for other jobs.

    Args:
        record: The job.
        occupied: What `occupancy` returned for records that include the job's.
    """
    if record.state is not JobState.QUEUED:
        return None
    if record.id in occupied.sent:
        return "the worker that it was sent to"
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
    workers = occupied.workers
    unfit = [worker for worker in occupied.unfit if worker.reads(record.wire, record.agent)]
    if unfit and not any(worker.reads(record.wire, record.agent) for worker in workers):
        others = f" (and {len(unfit) - 1} others)" if len(unfit) > 1 else ""
        return f"a fit worker: on {unfit[0].name}{others} {unfit[0].unfit}"
    if not workers:
        return "a worker: none is running"
    if not any(worker.wire_oldest <= record.wire <= worker.wire_newest for worker in workers):
        versions = {f"{worker.wire_oldest} to {worker.wire_newest}" for worker in workers}
        age = (
            "a newer" if any(worker.wire_newest < record.wire for worker in workers) else "an older"
        )
        return (
            f"{age} worker: it needs wire version {record.wire}, the living workers know "
            + " and ".join(sorted(versions))
        )
    if not any(worker.reads(record.wire, record.agent) for worker in workers):
        return f"agent {record.agent}, which no worker has read yet"
    if not occupied.workers_for(record) and record.id in occupied.refused:
        return "another host: those that have tried could not open its sandbox"
    if not occupied.workers_for(record):
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
    workers = occupied.workers_for(record)
    if sum(worker.running for worker in workers) >= sum(worker.concurrency for worker in workers):
        return "a free slot on a worker"
    return "its turn"
