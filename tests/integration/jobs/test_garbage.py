"""What an ended agent had is freed with it: no collection of a process's whole garbage is needed.

Such a collection holds a worker for as long as all ended agents left objects, a second for each
thousand of them.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from google.adk.agents.invocation_context import InvocationContext

from fanout.orchestrator.deep_agent.adk_internals import DeepLlmAgent
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.agent.subagent import Subagent
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import LEASE_SECONDS, Bench
from tests.integration.scripts import DONE, conversation, says, shell
from tests.waits import eventually

JOBS = 4
OF_AN_AGENT = (DeepLlmAgent, InvocationContext, Subagent)


bench = bench_fixture(
    conversation("^talk", DONE),
    conversation("^write", shell("echo made > made.txt"), DONE),
    conversation("^fail", shell("echo made > made.txt"), says("")),
    conversation("^think", shell("echo made > made.txt"), says("late", delay_seconds=60)),
    lease_seconds=LEASE_SECONDS,
)


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def agents_in_garbage() -> Counter[str]:
    """What a collection of everything finds of agents, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found = (type(each) for each in gc.garbage)
        return Counter(kind.__name__ for kind in found if issubclass(kind, OF_AN_AGENT))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("task", "state"),
    [
        ("talk", JobState.SUCCEEDED),
        ("write", JobState.SUCCEEDED),
        ("fail", JobState.FAILED),
    ],
)
async def test_an_ended_agent_is_freed_at_once(bench: Bench, task: str, state: JobState) -> None:
    for _ in range(JOBS):
        job_id = await bench.submit(make_spec(task))
        await bench.run(job_id)
        assert (await bench.ledger.get(job_id)).state is state

    assert agents_in_garbage() == Counter()


@pytest.mark.usefixtures("no_collections")
async def test_a_cancelled_agent_is_freed_at_once(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("think"))
    running = asyncio.create_task(bench.run(job_id))
    await eventually(lambda: requests(bench, job_id), lambda seen: seen >= 2)
    await bench.ledger.cancel(job_id)
    await running
    await asyncio.sleep(0)

    assert agents_in_garbage() == Counter()


async def requests(bench: Bench, job_id: str) -> int:
    events = await bench.journal.read(job_id)
    return sum(event.type is EventType.MODEL_REQUEST for event in events)
