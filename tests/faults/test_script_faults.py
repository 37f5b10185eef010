"""Scripts survive whatever dies, at any moment: one job for each call, and the same value."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs.failures import LeaseLost
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.test_approval_faults import lapse
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, says, shell

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

SCRIPT = (
    conversation("^review", says("## Summary\nIt is fine.")),
    conversation("^write a", shell("echo a > a.txt"), DONE),
    conversation("^write b", shell("echo b > b.txt"), DONE),
)
SOURCE = """
import asyncio

seen = []

async def reviewed(name):
    found = await agent("review " + name)
    seen.append(name)
    return await agent(f"review {name} again, number {len(seen)}")

async def main():
    phase("review")
    answer, *found = await asyncio.gather(
        ask("Which one?"), *[reviewed(name) for name in ("x", "y", "z")]
    )
    phase("write")
    kept = await agent("write a", files="keep")
    await agent("write b")
    report = await land(kept)
    phase("end")
    return [answer, len(found), report.ok, await files(), await read("a.txt")]
"""
VALUE = ["that", 3, True, ["a.txt", "b.txt"], "a\n"]
CALLS = 8
"""The jobs of the script."""

bench = bench_fixture(*SCRIPT, retry_pause_seconds=0, real_redis=True)


async def submitted(bench: Bench) -> str:
    blob = await bench.blobs.put(SOURCE.encode())
    return await bench.submit(make_spec("a script", script=blob, max_attempts=20))


async def to_its_end(bench: Bench, job_id: str) -> JobResult:
    """Let dead attempts lapse, and answer what is asked, until everything has ended."""
    for _ in range(200):
        if not await bench.ledger.is_live(job_id):
            break
        for record in await bench.ledger.get_many(await bench.tree_ids(job_id)):
            await lapse(bench, record.id)
        for approval in await bench.ledger.approvals():
            answer = ApprovalAnswer(decision="respond", response="that")
            await bench.ledger.answer(approval.id, answer)
    return await bench.ended(job_id)


async def is_as_undisturbed(bench: Bench, job_id: str, where: object) -> None:
    result = await to_its_end(bench, job_id)
    assert result.error is None, (where, result.error)
    assert result.output == VALUE, where
    ids = (await bench.tree_ids(job_id))[1:]
    assert len(ids) == CALLS, where
    children = [await bench.ended(one) for one in ids]
    calls = sum(one.usage.model_calls for one in children)
    assert calls == CALLS + 2, where  # the two that write have two each
    settled = [
        str(one.data["key"])
        for one in await bench.journal.read(job_id)
        if one.type is EventType.SCRIPT_RESULT
    ]
    assert len(settled) == len(set(settled)), where


async def test_a_worker_may_die_at_any_entry_of_a_scripts_journal(bench: Bench) -> None:
    """The same script again and again, each time with a death at a later entry of its own."""
    mortal = DiesAtOwnEntry(bench)
    for dies_at in range(1, 100, 2):
        job_id = await submitted(bench)
        mortal.dies_at(job_id, dies_at)
        await is_as_undisturbed(bench, job_id, dies_at)
        if not mortal.died:
            break
    assert dies_at > 20


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("arrow", ["start", "park", "finish", "states"])
async def test_a_worker_may_die_at_each_arrow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arrow: str, when: str
) -> None:
    """At each submission, park, wake-up and end: before it takes effect, and after."""
    run = bench.run

    async def mortal_run(job_id: str) -> JobResult | None:
        with suppress(LeaseLost):
            return await run(job_id)
        return None

    monkeypatch.setattr(bench, "run", mortal_run)
    for dies_at in (1, 2, 5, 9):
        job_id = await submitted(bench)
        real, calls = getattr(bench.ledger, arrow), 0

        async def dies(
            first: Any,
            *more: Any,
            real: Any = real,
            own: str = job_id,
            at: int = dies_at,
            **named: Any,
        ) -> Any:
            nonlocal calls
            calls += own == first or (arrow == "states")
            if calls == at:
                if when == "after":
                    await real(first, *more, **named)
                calls += 1
                raise LeaseLost("The worker is gone.")
            return await real(first, *more, **named)

        monkeypatch.setattr(bench.ledger, arrow, dies)
        await bench.work_off()
        await is_as_undisturbed(bench, job_id, (arrow, when, dies_at))
        monkeypatch.setattr(bench.ledger, arrow, real)
        if calls < dies_at:
            break


class DiesAtOwnEntry:
    """Lets one entry of one job's journal fail, as if the worker were gone."""

    def __init__(self, bench: Bench) -> None:
        self._append = bench.journal.append
        self._job, self._left, self.died = "", 0, False
        bench.journal.append = self.append

    def dies_at(self, job_id: str, number: int) -> None:
        self._job, self._left, self.died = job_id, number, False

    async def append(self, job_id: str, *arguments: Any, **more: Any) -> str:
        if job_id == self._job:
            self._left -= 1
            if self._left == 0:
                self.died = True
                raise LeaseLost("The worker is gone.")
        return await self._append(job_id, *arguments, **more)


async def test_a_script_that_makes_other_calls_is_stopped(bench: Bench) -> None:
    """Whoever changes it behind the back of its job starts nothing by that."""
    blob = await bench.blobs.put(b'[await agent("review a"), await agent("review b")]')
    job_id = await bench.submit(make_spec("a script", script=blob))
    await bench.run(bench.arrived.get_nowait())
    other = (await bench.blobs.put(b'await agent("review c")')).encode()
    key = bench.keys.job(job_id)
    stored: Any = await bench.redis.hget(key, "spec")
    text = stored if isinstance(stored, bytes) else stored.encode()
    await bench.redis.hset(key, "spec", text.replace(blob.encode(), other))

    result = await to_its_end(bench, job_id)

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == "ScriptDiverged"
    assert len(await bench.tree_ids(job_id)) == 2
