"""Why a queued job does not run, in words.

Counted for a whole page of records in two round trips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from orchestrator.jobs.policy import AdmissionPolicy
from orchestrator.jobs.state import JobRecord, JobState
from orchestrator.jobs.store.keys import Keys
from orchestrator.jobs.store.redis_errors import redis_failures
from orchestrator.jobs.versions import awaited_worker
from orchestrator.jobs.worker_info import WorkerInfo


@dataclass(frozen=True)
class Occupancy:
    """The limits, and how far they are used where some queued jobs would run."""

    policy: AdmissionPolicy
    workers: Collection[WorkerInfo]
    """Those that take jobs."""
    active: Mapping[str, int]
    """By key: the jobs on their way or running in a tree, of a tenant or an agent."""
    sent: Collection[str]
    """Jobs that are on their way to a worker."""
    keys: Keys

    def who_reads(self, record: JobRecord) -> list[WorkerInfo]:
        """The workers that understand a queued job's specification."""
        return [worker for worker in self.workers if worker.reads(record.wire, record.agent)]

    def full(self, key: str, limit: int | None) -> str | None:
        """How a limit is reached, in words; None when it is not."""
        running = self.active[key]
        return f"({running} of {limit} jobs run)" if limit and running >= limit else None


async def occupancy(
    redis: Redis, keys: Keys, records: Iterable[JobRecord], workers: Collection[WorkerInfo]
) -> Occupancy:
    """What it takes to tell why those of the records that are queued wait.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    queued = [record for record in records if record.state is JobState.QUEUED]
    sets = sorted({key for record in queued for key in _sets(keys, record)})
    with redis_failures():
        async with redis.pipeline(transaction=False) as pipe:
            pipe.hget(keys.policy, "json")
            for key in sets:
                pipe.scard(key)
            for record in queued:
                pipe.hget(keys.job(record.id), "dispatched")
            policy, *counted = await pipe.execute()
    dispatched: list[Any] = counted[len(sets) :]
    return Occupancy(
        policy=AdmissionPolicy.read(policy) if policy else AdmissionPolicy(),
        workers=[worker for worker in workers if not worker.draining],
        active=dict(zip(sets, counted, strict=False)),
        sent={record.id for record, sent in zip(queued, dispatched, strict=True) if sent == "1"},
        keys=keys,
    )


def waiting_reason(record: JobRecord, occupied: Occupancy) -> str | None:
    """Why a queued job does not run, in words; None for others."""
    if record.state is not JobState.QUEUED:
        return None
    if record.id in occupied.sent:
        return "the worker that it was sent to"
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
    if not occupied.workers:
        return "a worker: none is running"
    if awaited := awaited_worker(record.wire, occupied.workers):
        return awaited
    return None if occupied.who_reads(record) else f"a worker that knows the agent {record.agent}"


def _limit_reached(record: JobRecord, occupied: Occupancy) -> str | None:
    policy = occupied.policy
    limits = policy.tenant_limit(record.tenant), policy.agents.get(record.agent), policy.tree_jobs
    names = "tenant", "agent", "tree"
    for name, key, limit in zip(names, _sets(occupied.keys, record), limits, strict=True):
        if full := occupied.full(key, limit):
            return f"its {name}'s limit {full}"
    return None


def _its_turn(record: JobRecord, occupied: Occupancy) -> str:
    workers = occupied.who_reads(record)
    if sum(worker.running for worker in workers) >= sum(worker.concurrency for worker in workers):
        return "a free place on a worker"
    return "its turn"
