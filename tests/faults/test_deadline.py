"""A job's time counts whatever it waits for but people and the queue, and then the job ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.faults import stopping
from tests.faults.stopping import LATE_SECONDS, WORDS, changed
from tests.integration.worker.approvals import parked
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(400)]

TREE_SECONDS = 15
"""Until the end of a tree, of which a grandchild has to be at work before."""
FIRST_SECONDS, APART_SECONDS = 12.0, 0.6
"""The shortest limit of the others, and between two: each job's end is looked at for itself."""


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("deadline")
    with stopping.stopping_place(folder, str(request.param), 20) as made:
        yield made


async def timed_out(client: JobClient, job_id: str, seconds: float) -> JobResult:
    """Its result, which came in time."""
    result = await client.wait(job_id, seconds + 60)
    assert result.state is JobState.TIMED_OUT, result
    assert result.error is not None
    assert (result.error.type, f"time limit of {seconds:g} s" in result.error.message) == (
        "DeadlineExceeded",
        True,
    )
    took = await stopping.ended_at(client, job_id) - await stopping.ran_at(client, job_id)
    assert seconds <= took + 0.1, (job_id, took)
    assert took < seconds + LATE_SECONDS, (job_id, took)
    assert result.execution_seconds >= seconds - 0.1
    return result


async def test_jobs_end_at_their_time_whatever_they_do_or_wait_for(
    place: Installation, client: JobClient
) -> None:
    limits = Limits(timeout_seconds=TREE_SECONDS)
    top = await client.submit(make_spec("top", agent="lead", limits=limits))
    asks = await client.submit(make_spec("ask", agent="guarded", limits=limits))
    await stopping.until_running(WORDS["daemon"])  # a grandchild is at work
    below = [record for record in await client.tree(top) if record.id != top]
    assert len(below) == 5
    assert all(0 < (record.limits.timeout_seconds or 99) < TREE_SECONDS for record in below)
    await parked(client, asks)
    await timed_out(client, top, TREE_SECONDS)
    ended = await stopping.ended_at(client, top)
    for record in below:
        await client.wait(record.id, 60)
        assert await stopping.ended_at(client, record.id) - ended < LATE_SECONDS
    for name in ("writes", "deaf", "daemon"):
        assert not await stopping.gone(WORDS[name], LATE_SECONDS), name

    names = [*(f"run {name}" for name in WORDS), "thinks", "model backs off", "hangs"]
    limits = {name: FIRST_SECONDS + at * APART_SECONDS for at, name in enumerate(names)}
    jobs = {
        name: await client.submit(
            make_spec(
                name,
                limits=Limits(timeout_seconds=seconds),
                model="gpt-5" if name == "hangs" else None,
            )
        )
        for name, seconds in limits.items()
    }
    for name, seconds in limits.items():
        result = await timed_out(client, jobs[name], seconds)
        assert name in {"hangs", "model backs off"} or "before.txt" in changed(result), name
        if word := WORDS.get(name.removeprefix("run ")):
            assert not await stopping.gone(word), name
    assert (await client.get(asks)).state is JobState.WAITING  # a person has all the time
    await client.cancel(asks)
    assert not await stopping.let_go(place, 60)
