"""Approvals survive whatever dies: worker, parent, Redis, at any moment.

What ran never runs again.
"""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import LeaseLost
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from tests.builders import make_spec, make_worker
from tests.faults.stopping import until_prints
from tests.fixtures import BOTH_PROVIDERS, bench_fixture, place_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.integration.worker.approvals import (
    SUPERVISED,
    file_of,
    journal,
    parked,
)
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

YES = ApprovalAnswer(decision="approve")

SCRIPT = (
    conversation("short", shell("echo ran >> out.txt"), DONE),
    conversation(
        "look first", calls(call("ls", path="/workspace")), shell("echo ran >> out.txt"), DONE
    ),
    conversation("long", shell("echo ran >> out.txt; echo begun; sleep 600"), DONE),
    conversation(
        "side by side",
        calls(call("execute", command="echo ran >> out.txt"), call("ls", path="/workspace")),
        shell("echo again >> out.txt"),
        DONE,
    ),
)


place = place_fixture(
    *SCRIPT, providers=BOTH_PROVIDERS, agents=SUPERVISED, FANOUT_WORKER__LEASE_SECONDS="4"
)


async def test_worker_redis_and_parent_may_die_while_a_person_thinks(place: Installation) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        command = ("-m", "fanout", "submit", "short", "--agent", "guarded", "--wait")
        parent = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=place.environment, stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        job_id = (await parent.stdout.readline()).decode().strip()
        (approval,) = await parked(client, job_id)
        parent.kill()
        worker.kill()
        place.redis.kill()
        await parent.communicate()
        place.redis.start()
        assert (await client.get(job_id)).state is JobState.WAITING

        await client.answer(approval.id, "approve")  # nobody is there to hear it
        assert (await client.get(job_id)).state is JobState.QUEUED
        place.start_worker()

        result = await client.wait(job_id, 60)
        assert result.success, result.error
        assert await file_of(client, job_id, "out.txt") == "ran\n"
        assert (result.attempts, result.usage.model_calls) == (1, 2)


async def test_a_worker_killed_in_an_approved_call_is_not_asked_about_again(
    place: Installation,
) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("long", agent="guarded"))
        (approval,) = await parked(client, job_id)
        await client.answer(approval.id, "approve")
        async with asyncio.timeout(60):
            events = client.events(job_id)
            calls_seen = 0
            while calls_seen < 2:  # asked, then made
                calls_seen += (await anext(events)).type is EventType.TOOL_CALL
        await until_prints(client, job_id)
        worker.kill()
        place.start_worker()

        result = await client.wait(job_id, 60)

        assert result.success, result.error
        assert await file_of(client, job_id, "out.txt") == "ran\n"
        assert CALL_INTERRUPTED[:40] in str(await journal(client, job_id, EventType.TOOL_RESULT))
        assert len(await journal(client, job_id, EventType.APPROVAL_REQUESTED)) == 1


# A worker that dies at any entry of the journal


class Mortal:
    """Lets entry `dies_at` of the journal and all after it fail, as if the worker were gone."""

    def __init__(self, bench: Bench) -> None:
        self._append, self._checkpoint = bench.journal.append, bench.ledger.checkpoint
        self._left: int | None = None
        bench.journal.append = self.append
        bench.ledger.checkpoint = self.checkpoint

    def dies_at(self, number: int | None) -> None:
        self._left = number

    @property
    def died(self) -> bool:
        return self._left is not None and self._left <= 0

    async def append(self, *arguments: object, **more: object) -> str:
        self._live()
        return await self._append(*arguments, **more)

    async def checkpoint(self, *arguments: object) -> bool:
        self._live()
        return await self._checkpoint(*arguments)

    def _live(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise LeaseLost("The worker is gone.")


bench = bench_fixture(*SCRIPT, agents=SUPERVISED, retry_pause_seconds=0, real_redis=True)


async def lapse(bench: Bench, job_id: str) -> None:
    """Let the dead attempt's lease be over now, and another attempt begin."""
    redis = bench.ledger._redis
    if await redis.zscore(Keys().leases, job_id) is not None:
        await redis.zadd(Keys().leases, {job_id: 1})
        await redis.hdel(Keys().job(job_id), "lease_at")
    await bench.ledger.reap()
    await bench.admission.pump()
    await bench.work_off()


@pytest.mark.parametrize("when", ["asking", "answered"])
async def test_a_worker_may_die_at_any_entry_of_the_journal(bench: Bench, when: str) -> None:
    """The same job again and again, each time with a death one entry later, until it ends."""
    mortal = Mortal(bench)
    for dies_at in range(1, 40):
        spec = make_spec("side by side", agent="guarded", max_attempts=9)
        mortal.dies_at(dies_at if when == "asking" else None)
        job_id = await bench.submit(spec)
        await bench.work_off()
        died = mortal.died
        mortal.dies_at(None)
        await lapse(bench, job_id)
        if when == "answered":
            (first,) = await bench.ledger.approvals()
            await bench.ledger.answer(first.id, YES)
            mortal.dies_at(dies_at)
            await bench.admission.pump()
            await bench.work_off()
            died = mortal.died
            mortal.dies_at(None)
            await lapse(bench, job_id)
        while (await bench.ledger.get(job_id)).state is JobState.WAITING:
            (approval,) = await bench.ledger.approvals()
            await bench.ledger.answer(approval.id, YES)
            await bench.admission.pump()
            await bench.work_off()

        result = await bench.ended(job_id)
        assert result.success, (dies_at, result.error)
        lines = await out_lines(bench, job_id)
        assert lines in (["ran", "again"], ["again"], ["ran"], []), dies_at  # each once at the most
        approved = [
            event
            for event in await bench.journal.read(job_id)
            if event.type is EventType.APPROVAL_RESOLVED
        ]
        assert len(lines) <= len(approved), dies_at
        if not died:
            assert lines == ["ran", "again"]
            return
    pytest.fail("no attempt lived long enough")


async def test_no_call_runs_that_was_not_approved(bench: Bench) -> None:
    mortal = Mortal(bench)
    for dies_at in range(1, 20):
        mortal.dies_at(dies_at)
        job_id = await bench.submit(make_spec("short", agent="guarded", max_attempts=9))
        await bench.work_off()
        died = mortal.died
        mortal.dies_at(None)
        await lapse(bench, job_id)
        record = await bench.ledger.get(job_id)
        if record.state is JobState.WAITING:
            assert not list(bench.sandboxes.glob(f"jobs/{job_id}/tree/out.txt"))
            await bench.ledger.cancel(job_id)
        else:  # the call was answered as interrupted, and the model did not make it again
            assert await out_lines(bench, job_id) == []
        if not died:
            return
    pytest.fail("no attempt lived long enough")


async def test_an_answer_does_not_count_where_the_conversation_begins_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host has no files of it.

    What was approved there says nothing about what is asked here.
    """
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.HEAD_START_SECONDS", 0)
    job_id = await bench.submit(make_spec("look first", agent="guarded"))
    await bench.work_off()
    (checkpoint,) = [e for e in await bench.journal.read(job_id) if e.type is EventType.CHECKPOINT]
    await bench.blobs.delete(str(checkpoint.data["changes"]))
    (first,) = await bench.ledger.approvals()
    await bench.ledger.answer(first.id, YES)
    bench.worker = make_worker("w2", host="h2")
    await bench.ledger.register(bench.worker, 600)

    await bench.admission.pump()
    await bench.work_off()

    (second,) = await bench.ledger.approvals()
    assert second.id != first.id
    assert not list(bench.sandboxes.glob(f"jobs/{job_id}/tree/out.txt"))
    await bench.ledger.answer(second.id, YES)
    await bench.admission.pump()
    await bench.work_off()
    assert (await bench.ended(job_id)).success
    assert await out_lines(bench, job_id) == ["ran"]


async def out_lines(bench: Bench, job_id: str) -> list[str]:
    """What the job wrote to out.txt, from its changes."""
    changes = (await bench.ended(job_id)).changes
    if changes is None:
        return []
    raw = await bench.blobs.get(changes)

    def read() -> str:
        with ChangeBundle.open(io.BytesIO(raw)) as bundle:
            (file,) = bundle.changes.files
            assert file.after is not None
            return bundle.content(file.after).decode()

    return (await asyncio.to_thread(read)).splitlines()
