"""Heartbeats: an attempt whose lease is not renewed stops before another can begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import JobCancelled, JobFailure, LeaseLost, LedgerUnavailable
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.workers import heartbeat
from fanout.workers.heartbeat import FENCE, Heartbeats
from tests.builders import make_spec

LEASE = 0.6


@pytest.fixture(autouse=True)
async def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only while all tasks wait, and at once: a busy machine is not late."""
    loop = asyncio.get_running_loop()
    select, now = loop._selector.select, loop.time()

    def pass_time(timeout: float | None) -> list[Any]:
        nonlocal now
        events = select(0 if timeout is not None else None)
        now += 0 if events or timeout is None else timeout
        return events

    monkeypatch.setattr(loop._selector, "select", pass_time)
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(heartbeat, "elapsed_clock", lambda: now)


class FakeLedger:
    """Answers beats as the test wants."""

    def __init__(self) -> None:
        self.answer = "held"
        self.hangs = self.fails = False
        self.beats = 0

    async def beat(self, held: Mapping[str, int], lease_seconds: float) -> dict[str, str]:
        assert lease_seconds == LEASE
        self.beats += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.fails:
            raise LedgerUnavailable("Redis does not answer.")
        return dict.fromkeys(held, self.answer)


class Attempt:
    def __init__(self) -> None:
        self.stopped_by: JobFailure | None = None
        self.stopped = asyncio.Event()
        self.began = heartbeat.elapsed_clock()
        self.ran = 0.0

    def stop(self, reason: JobFailure) -> None:
        if self.stopped_by is None:
            self.stopped_by, self.ran = reason, heartbeat.elapsed_clock() - self.began
        self.stopped.set()


@asynccontextmanager
async def beating(ledger: FakeLedger) -> AsyncIterator[tuple[Heartbeats, Attempt]]:
    heartbeats, attempt = Heartbeats(ledger, LEASE), Attempt()
    claim = Claim(make_spec(), token=1, attempt=1, ran_seconds=0, submitted_at=0, started_at=0)
    running = asyncio.create_task(heartbeats.run())
    with heartbeats.hold(claim, attempt.stop):
        yield heartbeats, attempt
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_renewed_lease_goes_on() -> None:
    async with beating(FakeLedger()) as (heartbeats, attempt):
        await asyncio.sleep(3 * LEASE)  # it ends in none of three leases
        assert attempt.stopped_by is None
        assert len(heartbeats) == 1
    assert len(heartbeats) == 0


@pytest.mark.parametrize("trouble", ["hangs", "fails"])
async def test_an_attempt_stops_before_its_lease_lapses_when_redis_hangs_or_fails(
    trouble: str,
) -> None:
    ledger = FakeLedger()
    setattr(ledger, trouble, True)
    async with beating(ledger) as (_, attempt), asyncio.timeout(60):
        await attempt.stopped.wait()

    assert isinstance(attempt.stopped_by, LeaseLost)
    assert LEASE * FENCE <= attempt.ran < LEASE


async def test_a_short_trouble_is_forgotten() -> None:
    ledger = FakeLedger()
    ledger.fails = True
    async with beating(ledger) as (_, attempt):
        await asyncio.sleep(LEASE * 0.4)
        ledger.fails = False
        await asyncio.sleep(2 * LEASE)  # nor later
        assert attempt.stopped_by is None


@pytest.mark.parametrize(("answer", "failure"), [("cancel", JobCancelled), ("lost", LeaseLost)])
async def test_what_the_ledger_says_ends_the_attempt(
    answer: str, failure: type[JobFailure]
) -> None:
    ledger = FakeLedger()
    ledger.answer = answer
    async with beating(ledger) as (_, attempt), asyncio.timeout(60):
        await attempt.stopped.wait()

    assert isinstance(attempt.stopped_by, failure)
    assert attempt.ran < LEASE / 2


async def test_a_worker_without_jobs_asks_nothing() -> None:
    ledger = FakeLedger()
    running = asyncio.create_task(Heartbeats(ledger, LEASE).run())
    await asyncio.sleep(LEASE)
    running.cancel()

    assert ledger.beats == 0
