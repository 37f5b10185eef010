"""Graphs of jobs whose worker and Redis are killed in between."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WIDTH, DEPTH = 10, 4
place = place_fixture(
    conversation("", shell("true"), DONE), workers=1, FANOUT_WORKER__LEASE_SECONDS="4"
)


def graph() -> list[JobSpec]:
    """Layers, each job after all of the layer before; one job fails, and two of the last run."""
    specs = []
    for depth in range(DEPTH):
        before = tuple(f"j{depth - 1}-{at}" for at in range(WIDTH)) if depth else ()
        specs += [
            make_spec(f"j{depth}-{at}", name=f"j{depth}-{at}", after=before, max_attempts=20)
            for at in range(WIDTH)
        ]
    broken = make_spec("broken", name="broken", after=("j0-0",), verify="false", max_reworks=0)
    last = [make_spec(f"last {at}", after=("broken",)) for at in range(WIDTH)]
    return [*specs, broken, *last, make_spec("cleanup", after=("broken",), on_failure="run")]


@pytest.mark.parametrize("victim", ["worker", "Redis"])
async def test_a_graph_runs_to_its_end_in_order_although_one_is_killed_again_and_again(
    place: Installation, client: JobClient, victim: str
) -> None:
    specs = graph()
    ids = await client.submit_many([(spec, None) for spec in specs])

    async def ended() -> int:
        states = await client.states(ids)
        return sum(JobState(str(state)).is_terminal for state in states)

    for done in (3, 14, 25, 36):
        await eventually(ended, lambda count, done=done: count >= done)
        if victim == "worker":
            place.workers[-1].kill()
            place.start_worker()
        else:
            await asyncio.to_thread(place.redis.kill)
            await asyncio.to_thread(place.redis.start)
    await eventually(ended, lambda count: count == len(ids))

    records = {one.description: one for one in await client.records(ids)}
    layers = [[records[f"j{depth}-{at}"] for at in range(WIDTH)] for depth in range(DEPTH)]
    assert {one.state for layer in layers for one in layer} == {JobState.SUCCEEDED}
    for before, after in pairwise(layers):
        assert max(one.finished_at or 0 for one in before) <= min(
            one.started_at or 0 for one in after
        )
    assert records["cleanup"].state == JobState.SUCCEEDED
    assert {records[f"last {at}"].error_type for at in range(WIDTH)} == {"NotRun"}
