"""Scripts on real workers: killed ones, and candidates of which one is enough."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.fixtures import place_fixture
from tests.integration.models.model_server import (
    Answer,
    ModelServer,
    environment,
    model_server,
    text,
)
from tests.integration.scripts import conversation, says
from tests.integration.worker.children import children_of
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (conversation("^review", says("## Summary\nIt is fine.", delay_seconds=0.1)),)
BY_ARRIVAL = """
import asyncio

seen = []

async def reviewed(number):
    await agent(f"review {number}")
    seen.append(number)
    return await agent(f"review again, number {len(seen)}")

async def main():
    return len(await asyncio.gather(*[reviewed(number) for number in range(inputs["count"])]))
"""
place = place_fixture(*SCRIPT, FANOUT_WORKER__LEASE_SECONDS="4")


@pytest.mark.parametrize(
    ("agents", "workers_killed", "redis_killed"),
    [
        pytest.param(24, 5, 0, id="24", marks=pytest.mark.representative),
        pytest.param(300, 40, 3, id="300", marks=pytest.mark.timeout(1500)),
    ],
)
async def test_workers_and_redis_are_killed_while_a_script_runs(
    place: Installation, agents: int, workers_killed: int, redis_killed: int
) -> None:
    """One job for each call, although what is called depends on what has arrived first."""
    chance = random.Random(agents)  # noqa: S311 - the moments of deaths
    deaths = ["worker"] * workers_killed + ["Redis"] * redis_killed
    chance.shuffle(deaths)
    moments = sorted(chance.randrange(1, agents) for _ in deaths)
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        spec = await client.script_job(BY_ARRIVAL, {"count": agents // 2}, max_attempts=20)
        job_id = await client.submit(spec)
        for moment, victim in zip(moments, deaths, strict=True):
            await eventually(
                lambda: settled(client, job_id), lambda some, n=moment: len(some) >= n, 300
            )
            await asyncio.sleep(chance.random())  # anywhere between two results
            if victim == "worker":
                worker.kill()
                worker = place.start_worker()
            else:
                await asyncio.to_thread(place.redis.kill)
                await asyncio.to_thread(place.redis.start)

        result = await client.wait(job_id, 600)

        assert result.error is None
        assert result.output == agents // 2
        keys = await settled(client, job_id)
        assert len(keys) == len(set(keys)) == agents
        children = await children_of(client, job_id)
        assert set(Counter(one.description for one in children).values()) == {1}
        assert len(children) == agents
        replies = [await answered(client, one.id) for one in children]
        assert set(replies) == {1}


async def answered(client: JobClient, job_id: str) -> int:
    """How often the model has answered a job."""
    types = [one.type async for one in client.events(job_id, follow=False)]
    return types.count(EventType.MODEL_REPLY)


async def settled(client: JobClient, job_id: str) -> list[str]:
    return [
        str(one.data["key"])
        async for one in client.events(job_id, follow=False)
        if one.type is EventType.SCRIPT_RESULT
    ]


@pytest.fixture
def service() -> Iterator[ModelServer]:
    """A model that answers the first candidate, and none of the others."""
    with model_server(
        [Answer(parts=[text("## Summary\nDone.")])] + [Answer(hangs=True)] * 2
    ) as made:
        yield made


@pytest.fixture
def candidates(install: Installer, service: ModelServer) -> Installation:
    return install(workers=1, **environment(service, "key"), FANOUT_MODEL="gemini-2.5-flash")


async def test_candidates_start_with_the_same_bytes_and_losers_are_cancelled(
    candidates: Installation, service: ModelServer
) -> None:
    async with candidates.client() as client:
        await candidates.ready(client)
        result = await client.run_script('(await best_of(3, "Solve it.")).summary')

        assert result.output == "Done."
        bodies = Counter(json.dumps(one, sort_keys=True) for one in service.requests)
        assert set(bodies.values()) <= {2, 3}  # the third may be cancelled before it asks
        assert len(bodies) == 1
        states = [one.state for one in await children_of(client, result.job_id)]
        assert Counter(states) == {JobState.SUCCEEDED: 1, JobState.CANCELLED: 2}
