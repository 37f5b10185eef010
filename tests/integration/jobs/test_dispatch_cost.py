"""What a dispatch costs Redis with a thousand trees of ten jobs.

Commands are counted, not seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.queue import CeleryQueue
from tests.builders import make_spec, make_worker

pytestmark = pytest.mark.redis

TREES, JOBS = 1000, 10
OF_A_JOB, OF_A_CALL = 45, 20
"""The most commands: of each job that is taken (two of its agent's kind wait), and of the call
besides."""


class Place:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.ledger = Ledger(redis, Keys())

    async def submit(self, jobs: int, **fields: Any) -> None:
        """A thousand trees."""
        specs = [
            make_spec(root_id=f"{fields['agent']}-{tree}", tenant=fields.get("tenant", "t").format(tree))
            .model_copy(update={"agent": fields["agent"]})
            for tree in range(TREES)
            for _ in range(jobs)
        ]  # fmt: skip
        await self.ledger.submit(specs)

    async def commands(self, most: int) -> tuple[int, int]:
        """How many jobs a dispatch takes, and how many commands it carries out."""
        await self._redis.config_resetstat()
        taken = len(await self.ledger.dispatch(most))
        stats = await self._redis.info("commandstats")
        calls = sum(kind["calls"] for name, kind in stats.items() if "config" not in name)
        return taken, calls

    async def reads(self) -> int:
        """How often the server has read something from a client."""
        return int((await self._redis.info("stats"))["total_reads_processed"])

    async def length(self, key: str) -> int:
        return int(await self._redis.llen(key))


@pytest.fixture
async def ledger_place(redis_url: str) -> AsyncIterator[Place]:
    async with connect(redis_url) as redis:
        yield Place(redis)


async def policy(place: Place, **fields: Any) -> None:
    worker = make_worker(concurrency=100_000)
    await place.ledger.register(worker, 600, AdmissionPolicy.model_validate(fields), 1)


@pytest.mark.slow
async def test_a_job_costs_the_same_however_many_trees_wait(ledger_place: Place) -> None:
    await policy(ledger_place)
    await ledger_place.submit(JOBS, agent="a")
    await ledger_place.submit(JOBS, agent="b")

    taken, commands = await ledger_place.commands(64)

    print(f"{commands / taken:.1f} commands a job with {2 * TREES:,} trees of {JOBS} jobs")
    assert taken == 64
    assert commands <= OF_A_JOB * taken + OF_A_CALL


@pytest.mark.parametrize(
    "full",
    [{"tree_jobs": 1}, {"tenant_jobs": 1}, {"agents": {"a": 5}}],
    ids=["trees", "tenants", "agents"],
)
async def test_what_is_full_costs_nothing(ledger_place: Place, full: dict[str, Any]) -> None:
    await policy(ledger_place, **full)
    await ledger_place.submit(2, agent="a", tenant="t{}")
    while await ledger_place.ledger.dispatch(500):
        pass
    idle, commands_idle = await ledger_place.commands(64)
    await ledger_place.ledger.submit([make_spec(agent="b", tenant="other")])
    taken, commands = await ledger_place.commands(64)

    print(f"{full}: {commands_idle} commands for nothing, {commands} for one job")
    assert (idle, taken) == (0, 1)
    assert commands_idle <= OF_A_CALL
    assert commands <= OF_A_JOB + OF_A_CALL


async def test_jobs_that_are_dispatched_together_are_sent_together(
    ledger_place: Place, redis_url: str
) -> None:
    await policy(ledger_place)
    await ledger_place.submit(1, agent="a")
    jobs = await ledger_place.ledger.dispatch(50)
    queue = CeleryQueue(redis_url, "fanout", "jobs")
    try:
        await queue.send(jobs[:1])  # connects
        before = await ledger_place.reads()
        await queue.send(jobs[1:])
        # The server reads at most 16 KiB at once; each message and each event alone were 98 reads.
        assert await ledger_place.reads() - before < 49, "of 49 messages and 49 events"
        assert await ledger_place.length("fanout:queue:jobs") == len(jobs)
    finally:
        await queue.close()
