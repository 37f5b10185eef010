"""Limits of tenants and agents, and whose turn it is, on real workers, from the journals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, says, shell
from tests.services import Installation, WorkerProcess
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

LEASE_SECONDS, REAP_SECONDS = 4.0, 1.0
PLACES = 6
TENANT_JOBS, PAIR_JOBS = 4, 2
SCRIPT = (
    conversation("until it is cancelled", shell("sleep 600"), DONE),
    conversation(".*", says("## Summary\nNothing to do.")),
)


class Span(NamedTuple):
    """From when to when an attempt had its place."""

    begin: float
    end: float
    worker: str


place = place_fixture(
    *SCRIPT,
    scope="module",
    agents={
        name: f"name: {name}\ndescription: d\ninstruction: work\nmax_running: {most}\n"
        for name, most in (("pair", PAIR_JOBS), ("single", 1))
    },
    workers=1,
    concurrency=PLACES,
    FANOUT_TENANTS=json.dumps({"heavy": {"weight": 3}, "small": {"jobs": TENANT_JOBS}}),
    FANOUT_WORKER__LEASE_SECONDS=str(LEASE_SECONDS),
    FANOUT_WORKER__REAP_INTERVAL_SECONDS=str(REAP_SECONDS),
)


async def submitted(client: JobClient, specs: Iterable[JobSpec]) -> list[str]:
    return await client.submit_many([(spec, None) for spec in specs])


def tree(name: str, count: int, **fields: Any) -> list[JobSpec]:
    return [make_spec(f"{name} {number}", **{"root_id": name, **fields}) for number in range(count)]


async def spans(client: JobClient, ids: Iterable[str]) -> list[Span]:
    """Those of all attempts, also of the one that a lost worker had until it was taken back."""
    found = []
    for job_id in ids:
        begin, worker = 0.0, ""
        async for event in client.events(job_id, follow=False):
            if event.type is not EventType.JOB_STATE:
                continue
            if begin:
                found.append(Span(begin, event.at, worker))
            runs = event.data["state"] == "running"
            begin, worker = (event.at, str(event.data["worker"])) if runs else (0.0, "")
    return found


def at_once(ran: Iterable[Span]) -> list[tuple[float, int]]:
    """How many ran from when on; of an end and a begin in one millisecond the end goes first."""
    edges = sorted([(span.end, -1) for span in ran] + [(span.begin, 1) for span in ran])
    running, counts = 0, []
    for at, step in edges:
        running += step
        counts.append((at, running))
    return counts


def most(ran: Iterable[Span]) -> int:
    return max(count for _, count in at_once(ran))


async def begun(client: JobClient, ids: Iterable[str], count: int) -> list[str]:
    """The first of the jobs to begin, in that order, once so many have."""
    wanted = list(ids)
    records = await eventually(
        lambda: client.records(wanted),
        lambda records: sum(record.started_at is not None for record in records) >= count,
    )
    started = sorted((record.started_at, record.id) for record in records if record.started_at)
    return [job_id for _, job_id in started[:count]]


async def until_running(
    client: JobClient, ids: Iterable[str], count: int, worker: WorkerProcess
) -> set[str]:
    """Wait until so many of the jobs run on the worker, and return those."""
    assert worker.process is not None
    name, wanted = f"-{worker.process.pid}", list(ids)

    async def there() -> set[str]:
        return {
            record.id
            for record in await client.records(wanted)
            if record.state is JobState.RUNNING and (record.worker or "").endswith(name)
        }

    return set(await eventually(there, lambda seen: len(seen) == count))


@pytest.mark.slow
async def test_limits_hold_across_the_death_of_a_worker_and_are_full_again_after_its_leases(
    place: Installation,
) -> None:
    [living] = place.workers
    async with place.client() as client:
        await place.ready(client)
        others = await submitted(client, tree("until it is cancelled", PLACES, root_id="others"))
        await until_running(client, others, PLACES, living)
        doomed = place.start_worker(PLACES)
        await place.ready(client, 2)
        held = tree("until it is cancelled", 16, root_id="small", tenant="small")
        ids = await submitted(client, held)
        held = tree("until it is cancelled", 16, root_id="pairs", tenant="other", agent="pair")
        pairs = await submitted(client, held)
        lost = await until_running(client, ids, TENANT_JOBS, doomed)
        lost |= await until_running(client, pairs, PAIR_JOBS, doomed)
        await asyncio.to_thread(doomed.kill)
        for job_id in others:
            await client.cancel(job_id)  # the living worker's places are free before the leases end
        await until_running(client, ids, TENANT_JOBS, living)
        await until_running(client, pairs, PAIR_JOBS, living)
        for job_id in {*ids, *pairs} - lost:
            await client.cancel(job_id)
        for job_id in lost:  # whose command had not begun sleeps in its second attempt
            assert (await client.wait(job_id, 200)).success
        ran, pair_ran = await spans(client, ids), await spans(client, pairs)
    assert most(ran) == TENANT_JOBS
    assert most(pair_ran) == PAIR_JOBS


@pytest.mark.slow
async def test_tenants_are_served_by_their_weight(place: Installation) -> None:
    async with place.client() as client:
        await place.ready(client)
        specs = [*tree("heavy", 50, tenant="heavy"), *tree("light", 50, tenant="light")]
        ids = await submitted(client, specs)  # a hundred are stored in one step
        order = await begun(client, ids, 40)
        for job_id in ids:
            await client.cancel(job_id)

    assert 28 <= sum(job_id in ids[:50] for job_id in order) <= 32, "30 of 40 is three to one"


@pytest.mark.slow
async def test_a_tree_of_three_does_not_wait_behind_a_tree_of_a_thousand(
    place: Installation,
) -> None:
    async with place.client() as client:
        await place.ready(client)
        spec = make_spec("until it is cancelled", root_id="big")  # children end with their parent
        (parent,) = await submitted(client, [spec])
        below = {"parent_id": parent, "depth": 1}  # so that one call ends them all
        big = await submitted(client, tree("big", 1000, **below))
        await begun(client, big[:20], 10)
        small = await submitted(client, tree("small", 3))
        submitted_at = max([(await client.get(job_id)).submitted_at for job_id in small])
        for job_id in small:
            assert (await client.wait(job_id, 60)).success
        began = max([(await client.get(job_id)).started_at or 0 for job_id in small])
        ran = [
            record.started_at or 0 for record in [await client.get(job_id) for job_id in big[:200]]
        ]
        await client.cancel(parent)

    meanwhile = sum(submitted_at < at < began for at in ran)
    assert meanwhile <= len(small) + 2 * PLACES, "its share, and what was on its way already"


async def test_a_higher_priority_goes_first(place: Installation) -> None:
    async with place.client() as client:
        await place.ready(client)
        priorities = [0, -5, 7, 7, 100, -100]
        specs = [
            make_spec(f"{rank}", root_id="ranks", agent="single", priority=rank)
            for rank in priorities
        ]
        ids = await submitted(client, specs)
        order = await begun(client, ids, len(ids))

    assert [priorities[ids.index(job_id)] for job_id in order] == sorted(priorities, reverse=True)
