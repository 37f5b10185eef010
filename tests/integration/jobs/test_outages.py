"""A Redis that goes away while a client waits, and comes back.

With its jobs, without them, or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import LedgerUnavailable, UnknownJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.store.ledger import Claim
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand, until_awaited
from tests.services import RedisProcess
from tests.waits import eventually

pytestmark = pytest.mark.redis

AWAY_SECONDS = 4


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(mortal: RedisProcess) -> str:
    return mortal.url


async def until_heard(hand: Hand) -> None:
    """Wait until the client listens for changes."""
    await eventually(lambda: hand.redis.pubsub_channels("fanout:bell:*"))


async def waited_for(client: JobClient, hand: Hand) -> tuple[Claim, asyncio.Task[JobResult]]:
    """A running job, and the wait for its end, which listens already."""
    job_id = await client.submit(make_spec())
    claim = await hand.claim(job_id)
    waiting = asyncio.create_task(client.wait(job_id))
    await until_heard(hand)
    return claim, waiting


@pytest.mark.slow
async def test_wait_and_events_go_on_through_an_outage_and_miss_nothing(
    client: JobClient, hand: Hand, mortal: RedisProcess
) -> None:
    job_id = await client.submit(make_spec())
    claim = await hand.claim(job_id)
    await hand.say(job_id, "before")
    seen: list[object] = []

    async def read() -> None:
        async for event in client.events(job_id):
            seen.append(event.data.get("text"))  # noqa: PERF401 - it is looked at meanwhile

    reading = asyncio.create_task(read())
    waiting = [asyncio.create_task(client.wait(job_id)) for _ in range(5)]
    await eventually(lambda: len(seen) >= 3)
    await until_awaited(hand, job_id)
    await asyncio.to_thread(mortal.kill)
    await asyncio.sleep(AWAY_SECONDS)  # an outage, longer than several attempts to connect
    await asyncio.to_thread(mortal.start)
    await hand.say(job_id, "after")
    await hand.finish(claim, summary="done")

    async with asyncio.timeout(60):
        results = await asyncio.gather(*waiting)
        await reading
    assert seen == [None, None, "before", "after", None]
    assert {result.summary for result in results} == {"done"}


async def test_a_wait_does_not_read_what_its_job_does(
    client: JobClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.journal.POLL_SECONDS", 600.0)
    claim, waiting = await waited_for(client, hand)
    await hand.redis.config_resetstat()

    for number in range(20):
        await hand.say(claim.spec.id, str(number))
    await hand.finish(claim, summary="done")

    async with asyncio.timeout(60):  # a poll would come later
        assert (await waiting).summary == "done"
    statistics = await hand.redis.info("commandstats")
    assert statistics["cmdstat_xadd"]["calls"] > 20
    assert "cmdstat_xrange" not in statistics
    assert "cmdstat_xrevrange" not in statistics


async def test_after_an_outage_a_wait_is_woken_by_a_new_subscription(
    client: JobClient, hand: Hand, mortal: RedisProcess
) -> None:
    claim, waiting = await waited_for(client, hand)
    await asyncio.to_thread(mortal.kill)
    await asyncio.to_thread(mortal.start)
    await until_heard(hand)

    await hand.finish(claim, summary="done")

    async with asyncio.timeout(60):
        assert (await waiting).summary == "done"


async def test_a_wait_keeps_its_own_timeout_while_redis_is_away(
    client: JobClient, hand: Hand, mortal: RedisProcess
) -> None:
    job_id = await client.submit(make_spec())
    waiting = asyncio.create_task(client.wait(job_id, 2))
    await until_awaited(hand, job_id)
    await asyncio.to_thread(mortal.kill)

    async with asyncio.timeout(60):
        await asyncio.wait({waiting})
    assert isinstance(waiting.exception(), TimeoutError)


async def test_a_redis_that_came_back_without_the_job_ends_the_wait(
    client: JobClient, hand: Hand, mortal: RedisProcess, tmp_path: Path
) -> None:
    job_id = await client.submit(make_spec())
    waiting = asyncio.create_task(client.wait(job_id))
    await until_awaited(hand, job_id)
    await asyncio.to_thread(mortal.kill)
    for part in await asyncio.to_thread(lambda: list((tmp_path / "appendonlydir").iterdir())):
        await asyncio.to_thread(part.unlink)
    await asyncio.to_thread(mortal.start)

    with pytest.raises(UnknownJob):
        async with asyncio.timeout(60):
            await waiting


@pytest.mark.slow
async def test_an_outage_that_does_not_end_is_told(
    client: JobClient, hand: Hand, mortal: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.outage.OUTAGE_SECONDS", 2.0)
    job_id = await client.submit(make_spec())
    waiting = asyncio.create_task(client.wait(job_id))
    await until_awaited(hand, job_id)
    await asyncio.to_thread(mortal.kill)

    with pytest.raises(LedgerUnavailable):
        async with asyncio.timeout(60):
            await waiting


async def test_a_redis_that_was_never_there_is_told_at_once(
    client: JobClient, mortal: RedisProcess
) -> None:
    await asyncio.to_thread(mortal.kill)

    async with asyncio.timeout(60):
        with pytest.raises(LedgerUnavailable):
            await client.wait("any")
        with pytest.raises(LedgerUnavailable):
            _ = [event async for event in client.events("any")]
