"""Many short jobs on one worker beside one of them, and what follows a job's last reply.

The model takes half a second for each reply, so one job takes what its five replies take and what
fanout adds. Fifty at once show what they take from each other: processors for sandboxes and agents.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.supervisor import number_of_processes
from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved
from tests.integration.scripts import call, calls, conversation, says, shell, write_script
from tests.services import installation

JOBS = 50
TURNS, TURN_SECONDS = 5, 0.5
ROUNDS = 5
"""Many at once and one alone, in turn."""
COMMITS = 15
WAIT_SECONDS = 80.0
PLAN = calls(call("write_todos", todos=[{"content": "look", "status": "in_progress"}]))


def many(name: str, where: str, target_ratio: float) -> Benchmark:
    """A row about many jobs at once beside one of them."""
    return Benchmark(
        name=name,
        title=f"{JOBS} jobs of {TURNS} turns of {TURN_SECONDS:g} s at once, {where}",
        unit="ms",
        floor="one of them alone",
        target_ratio=target_ratio,
    )


TALKING = many("jobs-50x5", "without files", 1.15)
LOCAL = many("jobs-50x5-local", "a command each turn, local sandboxes", 1.3)
DOCKER = many("jobs-50x5-docker", "a command each turn, in Docker", 1.3)
COMMIT = Benchmark(
    name="commit-path",
    title="from a job's last reply to its end, a file changed, local sandbox",
    unit="ms",
    floor="the same without files",
    target=15,
)
COMMIT_DOCKER = Benchmark(
    name="commit-path-docker",
    title="from a job's last reply to its end, a file changed, in Docker",
    unit="ms",
    floor="the same without files",
    target=15,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Each provider has a worker of its own."""
    for provider, rows in (
        ("local", ((TALKING, "talk"), (LOCAL, "work"), (COMMIT, "edit"))),
        ("docker", ((DOCKER, "work"), (COMMIT_DOCKER, "edit"))),
    ):
        if not {benchmark.name for benchmark, _ in rows}.intersection(wanted):
            continue
        async with _worker(provider) as client:
            for benchmark, description in rows:
                if benchmark.name not in wanted:
                    continue
                if description == "edit":
                    yield benchmark, await _commits(client)
                else:
                    yield benchmark, await _at_once(client, description)


def turns_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The replies of a model that takes its time for each of them."""
    answer = says("Done.", delay_seconds=TURN_SECONDS)
    return [*[reply | {"delay_seconds": TURN_SECONDS}] * (TURNS - 1), answer]


@asynccontextmanager
async def _worker(provider: str) -> AsyncIterator[JobClient]:
    """A worker with room for all jobs, which has run one of each kind."""
    conversations = (
        conversation("^talk", *turns_of(PLAN)),
        conversation("^work", *turns_of(shell("echo x >> x.txt"))),
        conversation("^edit", shell("echo x >> x.txt"), says("Done.")),
        conversation("^say", PLAN, says("Done.")),
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        script = await asyncio.to_thread(write_script, Path(name), *conversations)
        settings = {"FANOUT_SANDBOX__PROVIDER": provider, "FANOUT_LIMITS__TREE_JOBS": str(JOBS)}
        with installation(Path(name), script=script, **settings) as place:
            place.start_worker(JOBS, forked=False, FANOUT_WORKER__PROCESSES="0")
            async with place.client() as client:
                await place.ready(client, workers=number_of_processes(0, JOBS))
                await _ended(client, ["say", "edit"])
                yield client


async def _at_once(client: JobClient, description: str) -> Samples:
    alone, many = [description], [description] * JOBS
    return await interleaved(ROUNDS, lambda: _ended(client, many), lambda: _ended(client, alone))


async def _ended(client: JobClient, descriptions: list[str]) -> float:
    """Milliseconds from the submission of jobs to the end of the last."""
    specs = [(JobSpec(description=description), None) for description in descriptions]
    began = time.perf_counter()
    ids = await client.submit_many(specs)
    results = await asyncio.gather(*(client.wait(job_id, WAIT_SECONDS) for job_id in ids))
    assert all(result.success for result in results), [result.error for result in results]
    return (time.perf_counter() - began) * 1000


async def _commits(client: JobClient) -> Samples:
    """One job after another, with a changed file and without, in turn."""
    pairs = [(await _commit(client, "edit"), await _commit(client, "say")) for _ in range(COMMITS)]
    return Samples(*map(list, zip(*pairs, strict=True)))


async def _commit(client: JobClient, description: str) -> float:
    """Milliseconds by the journal, whose times are whole ones."""
    job_id = await client.submit(JobSpec(description=description))
    assert (await client.wait(job_id, WAIT_SECONDS)).success
    events = [event async for event in client.events(job_id, follow=False)]
    replied = [event.at for event in events if event.type is EventType.MODEL_REPLY][-1]
    return max(events[-1].at - replied, 0.0005) * 1000


SECTION = Section(benchmarks=(TALKING, LOCAL, DOCKER, COMMIT, COMMIT_DOCKER), run=run)
