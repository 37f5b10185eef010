"""A cancel ends a job and all below it, whatever it and its worker do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import LIVE_STATES, JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults import stopping
from tests.faults.stopping import LATE_SECONDS, WORDS, changed
from tests.integration.worker.approvals import parked
from tests.services import Installation
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("cancel")
    with stopping.stopping_place(folder, str(request.param), 16) as made:
        yield made


class Canceller:
    """Cancels jobs one after another, and looks at the clock."""

    def __init__(self, client: JobClient, redis: Redis, place: Installation) -> None:
        self.client, self.redis, self.place = client, redis, place

    async def submit(self, description: str, agent: str = "general-purpose", **more: object) -> str:
        return await self.client.submit(make_spec(description, agent=agent, **more))

    async def cancel(self, job_id: str, *, containers_too: bool = True) -> set[str]:
        """Cancel it; it has ended in time with all below it. What it had changed."""
        asked_at = await stopping.now(self.redis)
        await self.client.cancel(job_id)
        await self.client.wait(job_id, 60)
        result = await self.client.complete_result(job_id)
        assert result is not None
        assert result.state is JobState.CANCELLED, result
        for record in await self._below(job_id):
            await self.client.wait(record, 60)
            took = await stopping.ended_at(self.client, record) - asked_at
            assert took < LATE_SECONDS, (record, took)
            if containers_too and self.place.environment["FANOUT_SANDBOX__PROVIDER"] == "docker":
                assert not await stopping.containers_left(record)
        return changed(result)

    async def _below(self, job_id: str) -> list[str]:
        tree = await self.client.tree(job_id)
        return [record.id for record in tree]


@asynccontextmanager
async def opened(place: Installation) -> AsyncIterator[Canceller]:
    async with place.client() as client, connect(place.redis.url) as redis:
        await place.ready(client)
        try:
            yield Canceller(client, redis, place)
        finally:  # a test that failed leaves nothing to the next one
            for record in await client.list(states=LIVE_STATES):
                await client.cancel(record.id)


async def test_whatever_a_command_does_it_is_gone_with_all_its_processes(
    place: Installation,
) -> None:
    async with opened(place) as canceller:
        jobs = {name: await canceller.submit(f"run {name}") for name in WORDS}
        for name, job_id in jobs.items():
            await stopping.until_running(WORDS[name])
            assert "before.txt" in await canceller.cancel(job_id), name
            assert not await stopping.gone(WORDS[name]), name
    assert not await stopping.let_go(place, 60)


async def test_a_job_that_waits_ends_with_all_that_it_waits_for(place: Installation) -> None:
    async with opened(place) as canceller:
        thinks, backs_off = (
            await canceller.submit("thinks"),
            await canceller.submit("model backs off"),
        )
        hangs = [
            await canceller.submit("hangs", model=model) for model in ("gpt-5", "claude-sonnet-4-5")
        ]
        asks = await canceller.submit("ask", agent="guarded")
        top = await canceller.submit("top", agent="lead")
        for job_id in (thinks, backs_off, *hangs):
            await stopping.until(canceller.client, job_id, EventType.MODEL_REQUEST)
        await parked(canceller.client, asks)
        for name in ("writes", "deaf", "daemon"):  # a child and two grandchildren at work
            await stopping.until_running(WORDS[name])

        await canceller.cancel(top)
        for name in ("writes", "deaf", "daemon"):
            assert not await stopping.gone(WORDS[name]), name
        for job_id in (thinks, backs_off, *hangs, asks):
            await canceller.cancel(job_id)
        assert not await canceller.client.approvals()
    assert not await stopping.let_go(place, 60)


async def test_a_cancel_does_not_wait_for_a_worker_that_hears_nothing(place: Installation) -> None:
    """It is frozen; Redis was just away; it is stopping."""
    word = WORDS["nohup"]
    async with opened(place) as canceller:
        job_id = await canceller.submit("run nohup")
        await stopping.until_running(word)
        frozen = place.workers[-1]
        place.start_worker(FANOUT_WORKER__DRAIN="true")
        await place.ready(canceller.client, 2)
        frozen.send(signal.SIGSTOP)
        await canceller.cancel(job_id, containers_too=False)
        assert not await stopping.gone(word, 60)
        frozen.kill()
        await until_alone(canceller.client)

        job_id = await canceller.submit("run nohup")
        await stopping.until_running(word)
        place.redis.kill()
        place.redis.start()
        await canceller.cancel(job_id)
        assert not await stopping.gone(word)

        job_id = await canceller.submit("run nohup")
        await stopping.until_running(word)
        stopping_worker = asyncio.create_task(
            asyncio.to_thread(place.workers[-1].send, signal.SIGTERM)
        )
        await asyncio.sleep(0.3)
        await canceller.cancel(job_id)
        assert not await stopping.gone(word)
        await stopping_worker
        place.start_worker(concurrency=16)
        assert not await stopping.let_go(place, 60)


async def until_alone(client: JobClient) -> None:
    """Until the dead are no longer counted: messages do not wait for them then."""
    await eventually(client.workers, lambda seen: len(seen) <= 1)
