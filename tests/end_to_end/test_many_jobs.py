"""A thousand jobs: within every limit at every moment, trees in turn."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.store.journal import EventType
from tests.fixtures import place_fixture
from tests.forked import run_module
from tests.integration.scripts import conversation, says
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

HOST_LIMIT = 12
TREE_LIMIT = 8
AGENTS = ("general-purpose", "researcher")


place = place_fixture(
    conversation(".*", says("## Summary\nNothing to do.")),
    FANOUT_LIMITS__HOST_JOBS=str(HOST_LIMIT),
    FANOUT_LIMITS__TREE_JOBS=str(TREE_LIMIT),
)


def submit_file(place: Installation, count: int, name: str) -> list[str]:
    jobs = place.folder / f"{name}.jsonl"
    lines = [
        {"agent": AGENTS[number % 2], "description": f"{name} {number}"} for number in range(count)
    ]
    jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("submit", "--file", str(jobs), "--json")
    done = run_module("fanout", *command, environment=place.environment)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["job_ids"])


async def spans(client: JobClient, ids: Iterable[str]) -> list[tuple[float, float, str]]:
    """From when to when each job ran, and on which host, as its journal tells."""
    found = []
    for job_id in ids:
        began, host = 0.0, ""
        async for event in client.events(job_id, follow=False):
            if event.type is EventType.JOB_STATE and event.data["state"] == "running":
                began, host = event.at, str(event.data["host"])
            elif event.ends_job:
                found.append((began, event.at, host))
    return found


def most_at_once(ran: Iterable[tuple[float, float, str]]) -> int:
    """The journal's clock counts milliseconds: of two events in one, an end goes first."""
    edges = sorted([(end, -1) for _, end, _ in ran] + [(begin, 1) for begin, _, _ in ran])
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most


@pytest.mark.slow
async def test_a_thousand_jobs_keep_within_the_limits_and_leave_room_for_others(
    place: Installation,
) -> None:
    big = submit_file(place, 1000, "big")
    assert len(set(big)) == 1000
    for _ in range(2):
        place.start_worker(concurrency=8)
    async with place.client() as client:
        await place.ready(client, 2)
        small = submit_file(place, 3, "small")
        results = [await client.wait(job_id, 200) for job_id in [*small, *big]]
        assert all(result.success for result in results)
        big_spans, small_spans = await spans(client, big), await spans(client, small)

    by_host: dict[str, list[tuple[float, float, str]]] = {}
    for span in [*big_spans, *small_spans]:
        by_host.setdefault(span[2], []).append(span)
    assert all(most_at_once(ran) <= HOST_LIMIT for ran in by_host.values())
    assert most_at_once(big_spans) <= TREE_LIMIT
    last_small = max(end for _, end, _ in small_spans)
    after = sum(begin > last_small for begin, _, _ in big_spans)
    assert after > 500, "the small tree waited behind the big one"


@pytest.mark.representative
@pytest.mark.slow
async def test_two_trees_are_served_in_turn(place: Installation) -> None:
    first, second = submit_file(place, 60, "first"), submit_file(place, 60, "second")
    place.start_worker(concurrency=4)
    async with place.client() as client:
        for job_id in [*first, *second]:
            assert (await client.wait(job_id, 100)).success
        spans_of = {name: await spans(client, ids) for name, ids in (("a", first), ("b", second))}

    begins = sorted((begin, name) for name, ran in spans_of.items() for begin, _, _ in ran)
    half = [name for _, name in begins[:60]]
    assert 24 <= half.count("a") <= 36, "one tree was served before the other"
