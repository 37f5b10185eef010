"""Jobs that wait for children survive whatever dies, at any moment; no child runs twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import LeaseLost
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.workers.sandbox.merge_target import SandboxFolder
from tests.builders import make_spec, make_worker
from tests.faults.test_approval_faults import Mortal, lapse, out_lines
from tests.fixtures import BOTH_PROVIDERS, bench_fixture, place_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.integration.worker.approvals import file_of
from tests.integration.worker.children import (
    DELEGATING,
    answers,
    children_of,
    delegates,
    until,
)
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation(
        "both ends",
        shell("printf '1\\n2\\n3\\n4\\n5\\n' > out.txt"),
        delegates("at the top", "at the bottom"),
        shell("echo after >> out.txt"),
        DONE,
    ),
    conversation("at the top", shell("sed -i '1s/.*/top/' out.txt"), DONE),
    conversation("at the bottom", shell("sed -i '5s/.*/bottom/' out.txt"), DONE),
    conversation(
        "in the background",
        shell("printf '1\\n2\\n3\\n4\\n5\\n' > out.txt"),
        calls(
            call("start_task", description="at the top"),
            call("start_task", description="at the bottom"),
        ),
        calls(call("wait_tasks", task_ids=["{{started}}"])),
        shell("echo after >> out.txt"),
        DONE,
    ),
    conversation("waits", shell("echo mine > out.txt"), delegates("slow"), DONE),
    conversation("slow", shell("echo made >> out.txt; sleep 600"), DONE),
)
PARKING, GOING_ON = range(9, 14), range(32, 39)
"""The entries of the tree's journals at which its root parks, and at which it has its results."""
WHOLE = ["top", "2", "3", "4", "bottom", "after"]


# Real workers


place = place_fixture(
    *SCRIPT, providers=BOTH_PROVIDERS, agents=DELEGATING, FANOUT_WORKER__LEASE_SECONDS="4"
)


async def test_a_worker_is_killed_while_its_jobs_child_runs(place: Installation) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("waits", agent="lead", max_attempts=2))
        await until(client, job_id, JobState.WAITING)
        (child,) = await children_of(client, job_id)
        await until_event(client, child.id, EventType.TOOL_CALL)
        worker.kill()
        place.start_worker()

        result = await client.wait(job_id, 60)

        assert result.success, result.error
        assert (result.attempts, result.usage.model_calls) == (1, 3)
        assert (await file_of(client, job_id, "out.txt")).splitlines()[0] == "mine"
        assert [answer["status"] for answer in await answers(client, job_id)] == ["success"]
        assert len(await children_of(client, job_id)) == 1


# A worker that dies at any entry of the journal, and at any step of the merge


bench = bench_fixture(*SCRIPT, agents=DELEGATING, retry_pause_seconds=0, real_redis=True)


async def to_its_end(bench: Bench, job_id: str) -> None:
    """Let dead attempts lapse until everything has ended."""
    async with asyncio.timeout(60):
        while await bench.ledger.is_live(job_id):
            for record in await bench.ledger.get_many(await bench.tree_ids(job_id)):
                await lapse(bench, record.id)


async def test_a_worker_may_die_at_any_entry_while_it_parks_or_goes_on(bench: Bench) -> None:
    """The same tree again and again, each time with a death one entry later."""
    mortal = Mortal(bench)
    seen = set()
    for dies_at in (*PARKING, *GOING_ON):
        mortal.dies_at(dies_at)
        job_id = await bench.submit(make_spec("both ends", agent="lead", max_attempts=9))
        await bench.work_off()
        assert mortal.died, dies_at
        mortal.dies_at(None)
        seen.add((await bench.journal.read(job_id))[-1].type)
        await to_its_end(bench, job_id)

        result = await bench.ended(job_id)
        assert result.success, (dies_at, result.error)
        assert len(await bench.tree_ids(job_id)) <= 3, dies_at
        if EventType.CHILD_SUBMITTED in [entry.type for entry in await bench.journal.read(job_id)]:
            lines = await out_lines(bench, job_id)
            assert lines in (WHOLE, WHOLE[:-1]), (
                dies_at
            )  # the last command may have been interrupted
    assert {EventType.TOOL_CALL, EventType.SESSION_EVENT, EventType.TOOL_RESULT} <= seen


async def test_a_worker_may_die_at_any_entry_while_it_starts_tasks_and_waits(bench: Bench) -> None:
    """No task is lost, or started twice, however the death falls between it and its answer."""
    mortal = Mortal(bench)
    for dies_at in range(8, 60):
        mortal.dies_at(dies_at)
        spec = make_spec("in the background", agent="lead", max_attempts=9)
        job_id = await bench.submit(spec)
        await bench.work_off()
        died = mortal.died
        mortal.dies_at(None)
        await to_its_end(bench, job_id)

        result = await bench.ended(job_id)
        assert result.success, (dies_at, result.error)
        entries = await bench.journal.read(job_id)
        submitted = [entry for entry in entries if entry.type is EventType.CHILD_SUBMITTED]
        told = _started(entries)
        assert told == {str(entry.data["id"]) for entry in submitted}, dies_at
        children = await bench.ledger.get_many(await bench.tree_ids(job_id))
        assert {child.state for child in children} == {JobState.SUCCEEDED}, dies_at
        lines = await out_lines(bench, job_id) if result.files_modified else []
        for child in children:  # whose command was not cut off
            if child.parent_id and (await bench.ended(child.id)).files_modified:
                assert child.description.rpartition(" ")[2] in lines, dies_at
        if not died:
            break
    else:
        raise AssertionError("the tree has more entries")


def _started(entries: list[JournalEvent]) -> set[str]:
    """The ids that the calls of start_task answered."""
    found = set()
    for entry in entries:
        data: Any = entry.data.get("event") or {}
        for part in (data.get("content") or {}).get("parts") or []:
            answer = part.get("function_response") or {}
            if answer.get("name") == "start_task" and "task_id" in answer["response"]:
                found.add(answer["response"]["task_id"])
    return found


async def test_a_worker_may_die_at_any_step_of_the_merge(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = SandboxFolder.put_file
    deaths = [(at, when) for at in (1, 2) for when in ("before", "after")]
    for death in deaths:
        steps = 0

        def dying(
            folder: SandboxFolder, *arguments: object, death: tuple[int, str] = death
        ) -> None:
            nonlocal steps
            steps += 1
            if (steps, "before") == death:
                raise LeaseLost("The worker is gone.")
            put_file(folder, *arguments)
            if (steps, "after") == death:
                raise LeaseLost("The worker is gone.")

        monkeypatch.setattr(SandboxFolder, "put_file", dying)
        job_id = await bench.submit(make_spec("both ends", agent="lead"))
        await bench.work_off()
        assert await bench.ledger.is_live(job_id)
        await to_its_end(bench, job_id)

        assert await out_lines(bench, job_id) == WHOLE, death
        assert len(await bench.tree_ids(job_id)) == 3


async def test_another_host_goes_on_from_the_checkpoint(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("both ends", agent="lead"))
    await bench.run(bench.arrived.get_nowait())
    assert (await bench.ledger.get(job_id)).waiting_for == "children: 0 of 2"
    await bench.ledger.register(bench.worker, 0)
    bench.worker = make_worker("w2", host="h2")
    await bench.ledger.register(bench.worker, 600)
    await bench.admission.pump()

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.success, result.error
    assert await out_lines(bench, job_id) == WHOLE
    assert len(await bench.tree_ids(job_id)) == 3
    assert result.usage.model_calls == 4
