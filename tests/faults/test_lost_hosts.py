"""A host is lost with its disk.

The job goes on from its newest checkpoint, and what held still holds.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED, WORKSPACE_RESTORED
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.workers.sandbox.errors import EngineUnavailable
from tests.builders import make_spec, make_worker
from tests.faults.test_approval_faults import Mortal, lapse, out_lines
from tests.integration.jobs.bench import LONG_LEASE_SECONDS, Bench, opened_bench
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.integration.worker.approvals import GUARDED
from tests.integration.worker.children import LEAD, delegates
from tests.services import RedisProcess

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

ALWAYS_SECONDS = 1e-6
"""Between checkpoints: one before every model call."""
STEPS = [f"step {number}" for number in range(1, 5)]

SCRIPT = (
    conversation("four steps", *(shell(f"echo {step} >> out.txt") for step in STEPS), DONE),
    conversation(
        "makes a pipe", shell("echo a > out.txt; mkfifo pipe"), shell("echo b >> out.txt"), DONE
    ),
    conversation("looks only", shell("echo a > out.txt"), shell("ls"), shell("ls"), DONE),
    conversation(
        "delegates",
        shell("echo mine > out.txt"),
        delegates("a child"),
        shell("echo x >> out.txt"),
        DONE,
    ),
    conversation("a child", shell("echo child >> out.txt"), DONE),
)


@pytest.fixture
async def bench(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    monkeypatch.setattr("fanout.workers.attempt.job_runner.RETRY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("fanout.workers.agent.checkpoint.MAX_SHARE", 1e9)
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.HEAD_START_SECONDS", 0)
    redis: Redis = connect(redis_server.url)
    await redis.flushall()
    script = await asyncio.to_thread(write_script, tmp_path, *SCRIPT)
    async with opened_bench(redis, tmp_path, script, LONG_LEASE_SECONDS) as made:
        made.configure(await asyncio.to_thread(_agents, tmp_path))
        made.configure(checkpoint_seconds=ALWAYS_SECONDS)
        yield made
    await redis.aclose()


def _agents(folder: Path) -> object:
    agents = folder / "agents"
    agents.mkdir()
    (agents / "lead.yaml").write_text(LEAD)
    (agents / "guarded.yaml").write_text(GUARDED)
    return load_agent_definitions(agents)


async def move(bench: Bench, host: str) -> None:
    """The worker's host is lost, files and all; another takes its place."""
    await bench.ledger.register(bench.worker, 0)
    bench.worker = make_worker(f"w-{host}", host=host)
    await bench.ledger.register(bench.worker, 600)
    await asyncio.to_thread(shutil.rmtree, bench.sandboxes / "jobs", ignore_errors=True)


async def entries(bench: Bench, job_id: str, kind: EventType) -> list[JournalEvent]:
    return [entry for entry in await bench.journal.read(job_id) if entry.type is kind]


async def blobs_of(bench: Bench) -> set[str]:
    """The ids of all blobs in the store."""
    found = await asyncio.to_thread(lambda: list((bench.sandboxes.parent / "blobs").glob("??/*")))
    return {path.name for path in found}


async def dies_at(
    bench: Bench, mortal: Mortal, description: str, number: int, **fields: object
) -> str:
    """A job whose host is lost at that entry of its journal."""
    mortal.dies_at(number)
    job_id = await bench.submit(make_spec(description, max_attempts=9, **fields))
    await bench.work_off()
    assert mortal.died, number
    mortal.dies_at(None)
    return job_id


async def go_on(bench: Bench, job_id: str) -> None:
    await lapse(bench, job_id)
    async with asyncio.timeout(60):
        while await bench.ledger.is_live(job_id):
            await bench.work_off()
            await bench.admission.pump()


async def test_whenever_a_host_is_lost_only_the_work_since_the_checkpoint_is_done_again(
    bench: Bench,
) -> None:
    """The same job again and again, lost at another entry each time, and again on its next host."""
    mortal = Mortal(bench)
    for number in range(2, 25, 3):  # a turn has five entries: each kind of them, at another turn
        job_id = await dies_at(bench, mortal, "four steps", number)
        kept = len(await entries(bench, job_id, EventType.CHECKPOINT))
        await move(bench, f"next-{number}")
        mortal.dies_at(3)  # in its first model call or command there
        await lapse(bench, job_id)
        await bench.work_off()
        mortal.dies_at(None)
        await move(bench, f"last-{number}")
        await go_on(bench, job_id)

        result = await bench.ended(job_id)
        assert result.success, (number, result.error)
        assert await out_lines(bench, job_id) == STEPS, number
        replies = await entries(bench, job_id, EventType.MODEL_REPLY)
        assert result.usage.model_calls == len(replies), "what was paid counts"
        assert len(replies) <= 5 + 2, "more than the work since the checkpoint was done again"
        last = (await entries(bench, job_id, EventType.SANDBOX_READY))[-1]
        assert last.data["resumed"] == (kept > 0), number


async def test_without_a_checkpoint_the_job_begins_anew_and_its_budget_counts_on(
    bench: Bench,
) -> None:
    bench.configure(checkpoint_seconds=0)
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "four steps", 16, limits=Limits(max_model_calls=6))
    paid = len(await entries(bench, job_id, EventType.MODEL_REPLY))
    await move(bench, "h2")
    await go_on(bench, job_id)

    result = await bench.ended(job_id)
    assert paid == 3
    assert result.error is not None
    assert (result.error.type, result.usage.model_calls) == ("LimitReached", 6)


async def test_files_that_are_gone_from_the_same_host_are_restored_there(bench: Bench) -> None:
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "four steps", 16)
    await asyncio.to_thread(shutil.rmtree, bench.sandboxes / "jobs" / job_id)

    await go_on(bench, job_id)

    assert await out_lines(bench, job_id) == STEPS
    first, last = await entries(bench, job_id, EventType.SANDBOX_READY)
    assert first.data["files"] != last.data["files"]
    assert last.data["checkpoint"]


async def test_a_death_while_a_checkpoint_is_restored_leaves_no_half_of_it(bench: Bench) -> None:
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "four steps", 16)
    await asyncio.to_thread(shutil.rmtree, bench.sandboxes / "jobs" / job_id)
    mortal.dies_at(1)  # before it says that the files are there
    await lapse(bench, job_id)
    await bench.work_off()
    mortal.dies_at(None)
    left = bench.sandboxes / "jobs" / job_id / "tree" / "out.txt"
    await asyncio.to_thread(left.write_text, "half")

    await go_on(bench, job_id)

    assert await out_lines(bench, job_id) == STEPS


async def test_the_agent_is_told_once_that_its_files_were_restored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "fanout.orchestrator.delegation.agents.create_deep_agent",
        _listening(told),
    )
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "four steps", 16)
    assert [WORKSPACE_RESTORED in words for words in told] == [False]
    await move(bench, "h2")

    await go_on(bench, job_id)

    assert [WORKSPACE_RESTORED in words for words in told] == [False, True]
    results = await entries(bench, job_id, EventType.TOOL_RESULT)
    assert not any(CALL_INTERRUPTED in str(entry.data) for entry in results)


def _listening(told: list[str]) -> object:
    from fanout.orchestrator.deep_agent.create import create_deep_agent  # noqa: PLC0415 - before it is replaced

    def create(*arguments: object, instruction: str, **more: object) -> object:
        told.append(instruction)
        return create_deep_agent(*arguments, instruction=instruction, **more)

    return create


async def test_a_message_that_was_read_after_the_checkpoint_is_read_again(bench: Bench) -> None:
    mortal = Mortal(bench)
    bench.configure(checkpoint_seconds=0)
    job_id = await bench.submit(make_spec("four steps", max_attempts=9))
    await bench.ledger.send(job_id, "Mind the gap.")
    mortal.dies_at(8)
    await bench.work_off()
    mortal.dies_at(None)
    await move(bench, "h2")

    await go_on(bench, job_id)

    told = [
        entry
        for entry in await entries(bench, job_id, EventType.SESSION_EVENT)
        if "Mind the gap." in str(entry)
    ]
    assert len(told) == 2
    assert (await bench.ended(job_id)).unread_messages == ()


async def test_what_a_person_approved_is_not_asked_again_on_another_host(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("four steps", agent="guarded"))
    for step in range(1, 5):
        await bench.work_off()
        (approval,) = await bench.ledger.approvals()
        await bench.ledger.answer(approval.id, ApprovalAnswer(decision="approve"))
        await move(bench, f"h{step + 1}")
        await bench.admission.pump()
    await bench.work_off()

    assert await out_lines(bench, job_id) == STEPS
    assert len(await entries(bench, job_id, EventType.APPROVAL_REQUESTED)) == 4
    assert (await bench.ended(job_id)).usage.model_calls == 5


async def test_children_that_have_ended_do_not_run_again_on_another_host(bench: Bench) -> None:
    mortal = Mortal(bench)
    job_id = await bench.submit(make_spec("delegates", agent="lead", max_attempts=9))
    await bench.run(bench.arrived.get_nowait())
    await bench.run(bench.arrived.get_nowait())  # the child
    bench.configure(checkpoint_seconds=0)
    mortal.dies_at(4)  # it has its results, and asks its model
    await bench.work_off()
    assert mortal.died
    mortal.dies_at(None)
    await move(bench, "h2")

    await go_on(bench, job_id)

    assert await out_lines(bench, job_id) == ["mine", "child", "x"]
    assert len(await bench.tree_ids(job_id)) == 2


async def test_a_bundle_that_left_something_out_is_no_checkpoint_and_is_reported(
    bench: Bench,
) -> None:
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "makes a pipe", 14)
    assert await entries(bench, job_id, EventType.CHECKPOINT) == []
    await bench.ledger.cancel(job_id)
    await lapse(bench, job_id)

    result = await bench.ended(job_id)
    assert result.state is JobState.CANCELLED
    assert await out_lines(bench, job_id) == ["a", "b"]
    assert [file.path for file in result.files_modified] == ["out.txt"]


async def test_a_job_that_ends_without_its_worker_reports_what_its_checkpoint_has(
    bench: Bench,
) -> None:
    mortal = Mortal(bench)
    mortal.dies_at(16)
    job_id = await bench.submit(make_spec("four steps", max_attempts=1))
    await bench.work_off()
    mortal.dies_at(None)
    await lapse(bench, job_id)

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.sandbox, result.attempts) == ("AttemptsUsedUp", "local", 1)
    assert [(file.path, file.change, file.lines_added) for file in result.files_modified] == [
        ("out.txt", "added", 2)
    ]
    assert await out_lines(bench, job_id) == STEPS[:2]
    assert (result.usage.model_calls, result.usage.tool_calls) == (2, 2)


async def test_a_claim_that_an_outage_took_back_before_its_first_heartbeat_is_gone_on_with(
    bench: Bench,
) -> None:
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "four steps", 9)
    redis, key = bench.ledger._redis, bench.ledger._keys.job(job_id)
    await redis.hset(
        key, mapping={"beat_at": 0, "claimed_at": 0}
    )  # Redis began after its last heartbeat

    await go_on(bench, job_id)

    assert (await bench.ended(job_id)).attempts == 1
    assert await out_lines(bench, job_id) == STEPS
    ready = await entries(bench, job_id, EventType.SANDBOX_READY)
    assert [entry.data["resumed"] for entry in ready] == [None, True]


async def test_a_last_attempt_that_gets_no_sandbox_reports_what_the_checkpoint_has(
    bench: Bench,
) -> None:
    mortal = Mortal(bench)
    mortal.dies_at(16)
    job_id = await bench.submit(make_spec("four steps", max_attempts=2))
    await bench.work_off()
    mortal.dies_at(None)
    bench.provider.fail_before = [EngineUnavailable("No engine answers.")] * 3
    await lapse(bench, job_id)

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.attempts) == ("EngineUnavailable", 2)
    assert await out_lines(bench, job_id) == STEPS[:2]
    assert (result.usage.model_calls, result.sandbox) == (2, "local")


async def test_a_job_that_is_cancelled_while_it_waits_reports_its_changes(bench: Bench) -> None:
    bench.configure(checkpoint_seconds=0)
    job_id = await bench.submit(make_spec("delegates", agent="lead"))
    await bench.run(bench.arrived.get_nowait())

    await bench.ledger.cancel(job_id)

    result = await bench.ended(job_id)
    assert await out_lines(bench, job_id) == ["mine"]
    assert (result.usage.model_calls, result.usage.tool_calls) == (2, 2)


async def test_the_newest_checkpoints_stay_and_older_ones_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.workers.agent.checkpoint.KEPT_CHECKPOINTS", 2)
    mortal = Mortal(bench)
    job_id = await dies_at(bench, mortal, "four steps", 20)
    before = await checkpoint_blobs(bench, job_id)
    assert len(set(before)) == len(before) == 3
    assert await blobs_of(bench) & set(before) == set(before[-2:])

    await go_on(bench, job_id)

    left = await blobs_of(bench)
    assert (await bench.ended(job_id)).changes in left
    after = await checkpoint_blobs(bench, job_id)
    assert len(after) > 3
    assert left & set(after) == set(after[-2:])


async def checkpoint_blobs(bench: Bench, job_id: str) -> list[str]:
    found = await entries(bench, job_id, EventType.CHECKPOINT)
    return [str(entry.data["changes"]) for entry in found]


async def test_files_that_did_not_change_are_stored_once(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("looks only"))

    await bench.work_off()

    checkpoints = await entries(bench, job_id, EventType.CHECKPOINT)
    assert len(checkpoints) == 3
    assert len({str(entry.data["changes"]) for entry in checkpoints}) == 1
    assert (await bench.ended(job_id)).success
