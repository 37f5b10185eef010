"""Every arrow of a job's way, failing before its effect and after it.

submit -> queue -> claim -> sandbox -> agent -> result -> merge, and `cancel` at each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import InvalidJob, LedgerUnavailable
from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, JobResult
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.orchestrator.workspace.blobs import BlobStoreUnusable
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.errors import EngineUnavailable, ImageMissing, SandboxDied
from tests.builders import make_result, make_spec, make_worker
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import LONG_LEASE_SECONDS, Bench
from tests.integration.scripts import DONE, conversation, says, shell
from tests.waits import until_reaped

BYTES_NOT_UTF8 = r"printf 'caf\351 \377\376' | tee odd.bin"
SCRIPT = (
    conversation("write", shell("echo made > made.txt"), DONE),
    conversation("long", shell("echo before > before.txt; sleep 600"), DONE),
    conversation("talk", says("## Summary\n" + "word " * 5000)),
    conversation("not text", shell(BYTES_NOT_UTF8), says("{{last_result}}\n\n## Summary\nRead.")),
    conversation("flood", shell("yes 0123456789 | head -c 300000000"), DONE),
    conversation("model away", {"error": {"status": 503, "times": 1000}}),
)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.workers.attempt.job_runner.RETRY_PAUSE_SECONDS", 0.01)


bench = bench_fixture(*SCRIPT)


def lost_answer(monkeypatch: pytest.MonkeyPatch, target: Any, method: str) -> None:
    """The next call of a method takes effect, and nobody hears of it."""
    real = getattr(target, method)

    async def once(*arguments: Any) -> Any:
        monkeypatch.setattr(target, method, real)
        await real(*arguments)
        raise LedgerUnavailable("The connection was lost.")

    monkeypatch.setattr(target, method, once)


@contextlib.asynccontextmanager
async def make_bundle(bench: Bench, result: JobResult) -> AsyncIterator[ChangeBundle]:
    assert result.changes is not None
    path = await bench.blobs.fetch(result.changes)
    with contextlib.ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, ChangeBundle.open(path))


# submit -> queue


async def test_a_job_that_could_not_be_queued_waits_and_is_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.TRANSIT_SECONDS", 0.05)
    bench.queue.fail_before = 1
    spec = make_spec("write")
    with pytest.raises(LedgerUnavailable):
        await bench.submit(spec)
    assert await bench.work_off() == []

    await until_reaped(bench.ledger)
    await bench.admission.pump()
    await bench.work_off()

    assert (await bench.ended(spec.id)).success


async def test_a_job_that_was_queued_unheard_and_queued_again_runs_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.TRANSIT_SECONDS", 0.05)
    bench.queue.fail_after = 1
    spec = make_spec("write")
    with pytest.raises(LedgerUnavailable):
        await bench.submit(spec)
    await until_reaped(bench.ledger)
    await bench.admission.pump()
    assert len(bench.queue.sent) == 2

    first, second = await bench.work_off()

    assert first is not None
    assert second is None
    assert bench.provider.opened == 1
    assert await bench.states(spec.id) == ["queued", "queued", "running", "succeeded"]


async def test_a_submission_whose_answer_got_lost_is_repeated_without_a_second_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec("write")
    lost_answer(monkeypatch, bench.ledger, "submit")
    with pytest.raises(LedgerUnavailable):
        await bench.submit(spec)

    await bench.submit(spec)
    await bench.work_off()

    assert await bench.ledger.ids() == [spec.id]
    assert bench.provider.opened == 1


async def test_a_job_that_cannot_be_stored_is_refused_in_words_and_its_companions_are_not_stored(
    bench: Bench,
) -> None:
    bad = make_spec("write", labels={"team": "x" * 200_000})
    with pytest.raises(InvalidJob, match="KiB"):
        await bench.ledger.submit([*(make_spec("write") for _ in range(150)), bad])

    assert await bench.ledger.ids() == []


# queue -> claim


async def test_a_worker_that_dies_after_its_claim_costs_one_attempt(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("write"))
    bench.arrived.get_nowait()
    assert isinstance(await bench.ledger.claim(job_id, make_worker("dead"), 0.05), Claim)
    await until_reaped(bench.ledger)
    await bench.admission.pump()

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts) == (True, 2)


async def test_a_claim_whose_answer_got_lost_is_asked_for_again_and_costs_no_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await bench.submit(make_spec("write", max_attempts=1))
    lost_answer(monkeypatch, bench.ledger, "claim")

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts) == (True, 1)
    assert await bench.states(job_id) == ["queued", "running", "succeeded"]


async def test_a_message_for_a_job_that_is_not_there_changes_nothing(bench: Bench) -> None:
    assert await bench.run("nobody") is None
    assert await bench.ledger.ids() == []


# claim -> sandbox


async def test_a_missing_image_fails_the_job_at_once(bench: Bench) -> None:
    bench.provider.fail_before = [ImageMissing("The image x is not here: build it.")]
    job_id = await bench.submit(make_spec("write"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.error.retryable) == ("ImageMissing", False)
    assert "build it" in result.error.message
    assert (result.attempts, bench.provider.opened) == (1, 1)


async def test_an_engine_that_comes_back_costs_no_attempt(bench: Bench) -> None:
    bench.provider.fail_before = [EngineUnavailable("No engine answers.") for _ in range(2)]
    job_id = await bench.submit(make_spec("write", max_attempts=1))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts, bench.provider.opened) == (True, 1, 3)


async def test_a_sandbox_that_a_fit_host_does_not_open_ends_its_job_after_three_tries(
    bench: Bench,
) -> None:
    bench.provider.fail_before = [EngineUnavailable("No engine answers.") for _ in range(9)]
    job_id = await bench.submit(make_spec("write", max_attempts=9))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.state, result.error.type, result.attempts) == (
        JobState.FAILED,
        "EngineUnavailable",
        1,
    )
    assert bench.provider.opened == 3


async def test_an_attempt_pauses_before_the_next_and_a_cancel_ends_the_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.workers.attempt.job_runner.RETRY_PAUSE_SECONDS", 30.0)
    bench.provider.fail_before = [EngineUnavailable("No engine answers.")]
    job_id = await bench.submit(make_spec("write"))
    working = asyncio.create_task(bench.work_off())
    await bench.provider.opening.wait()
    await asyncio.sleep(0.2)

    await bench.ledger.cancel(job_id)
    async with asyncio.timeout(60):
        await working

    assert (await bench.ended(job_id)).state is JobState.CANCELLED
    assert bench.provider.opened == 1


async def test_a_sandbox_that_opened_and_was_lost_leaves_nothing(bench: Bench) -> None:
    bench.provider.fail_after = [SandboxDied("It is gone.")]
    job_id = await bench.submit(make_spec("write"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts) == (True, 1)
    assert bench.left_behind() == []


# sandbox -> agent


async def test_an_agent_whose_sandbox_dies_goes_on_in_the_next_attempt(bench: Bench) -> None:
    bench.provider.die_after_command = [SandboxDied("It is gone.")]
    job_id = await bench.submit(make_spec("write"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts) == (True, 2)
    assert [file.path for file in result.files_modified] == ["made.txt"]


async def test_a_model_that_stays_away_fails_the_job_in_words(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("model away", max_attempts=1))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.message


async def test_a_job_over_its_time_lists_what_it_had_changed(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("long", limits=Limits(timeout_seconds=5)))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.state is JobState.TIMED_OUT
    assert [file.path for file in result.files_modified] == ["before.txt"]
    assert result.changes is not None


# agent -> result


async def test_a_summary_that_is_too_long_is_cut(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("talk"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.success
    assert MAX_SUMMARY_CHARACTERS - 100 < len(result.summary) <= MAX_SUMMARY_CHARACTERS


async def test_output_that_is_not_utf8_and_odd_bytes_in_files_arrive(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("not text"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.success, result.error
    async with make_bundle(bench, result) as bundle:
        (file,) = bundle.changes.files
        assert file.after is not None
        assert await asyncio.to_thread(bundle.content, file.after) == b"caf\xe9 \xff\xfe"


async def test_three_hundred_megabytes_of_output_are_cut_to_what_a_model_reads(
    bench: Bench,
) -> None:
    job_id = await bench.submit(make_spec("flood"))

    await bench.work_off()

    assert (await bench.ended(job_id)).success
    assert (
        sum(len(event.model_dump_json()) for event in await bench.journal.read(job_id)) < 1_000_000
    )


async def test_changes_that_cannot_be_stored_fail_the_job_and_nothing_half_is_listed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> str:
        raise BlobStoreUnusable("The blob store cannot be written: look at FANOUT_BLOBS_URL.")

    monkeypatch.setattr(bench.blobs, "put_file", full)
    job_id = await bench.submit(make_spec("write", max_attempts=1))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.state, result.error.type) == (JobState.FAILED, "BlobStoreUnusable")
    assert "FANOUT_BLOBS_URL" in result.error.message
    assert (result.files_modified, result.changes) == ((), None)


async def test_a_result_that_was_stored_unheard_stays_the_only_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await bench.submit(make_spec("write"))
    lost_answer(monkeypatch, bench.ledger, "finish")

    await bench.work_off()
    stored = await bench.ended(job_id)
    assert await bench.run(job_id) is None  # delivered once more

    assert stored.success
    assert await bench.ended(job_id) == stored
    assert (await bench.states(job_id)).count("succeeded") == 1
    await bench.provider.reap(bench.ledger.is_live)
    assert bench.left_behind() == []


# result -> merge


async def test_merging_twice_and_over_a_change_of_the_parent_loses_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    job_id = await bench.submit(make_spec("write"))
    await bench.work_off()
    result = await bench.ended(job_id)
    folder = tmp_path / "parent"
    folder.mkdir()
    workspace = await asyncio.to_thread(Workspace, folder)

    async with make_bundle(bench, result) as bundle:
        first = await merge(workspace, bundle)
        again = await merge(workspace, bundle)
        (folder / "made.txt").write_text("the parent's own\n")
        over = await merge(workspace, bundle)

    assert first.applied
    assert not first.conflicts
    assert {file.how for file in again.applied} == {"already"}
    assert over.conflicts
    assert (folder / "made.txt").read_text() == "the parent's own\n"


# cancel, anywhere


async def test_a_cancel_before_the_claim_leaves_the_message_without_effect(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("write"))
    await bench.ledger.cancel(job_id)

    assert await bench.work_off() == [None]
    assert bench.provider.opened == 0
    assert (await bench.ended(job_id)).state is JobState.CANCELLED


async def test_a_cancel_while_the_sandbox_opens_leaves_nothing(bench: Bench) -> None:
    bench.provider.may_open.clear()
    job_id = await bench.submit(make_spec("write"))
    working = asyncio.create_task(bench.work_off())
    await bench.provider.opening.wait()

    await bench.ledger.cancel(job_id)
    async with asyncio.timeout(60):
        await working

    result = await bench.ended(job_id)
    assert (result.state, result.sandbox) == (JobState.CANCELLED, None)
    assert bench.left_behind() == []


async def test_a_cancel_while_the_changes_are_collected_still_tells_them(bench: Bench) -> None:
    bench.provider.changes_may_go_on.clear()
    job_id = await bench.submit(make_spec("write"))
    working = asyncio.create_task(bench.work_off())
    await bench.provider.collecting.wait()
    bench.provider.collecting.clear()

    await bench.ledger.cancel(job_id)
    async with asyncio.timeout(60):
        await bench.provider.collecting.wait()
        bench.provider.changes_may_go_on.set()
        await working

    result = await bench.ended(job_id)
    assert result.state is JobState.CANCELLED
    assert [file.path for file in result.files_modified] == ["made.txt"]
    assert result.changes is not None


async def test_a_cancel_after_the_end_changes_nothing(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("write"))
    await bench.work_off()
    before = await bench.ended(job_id)

    assert await bench.ledger.cancel(job_id) is JobState.SUCCEEDED
    assert await bench.ended(job_id) == before
    assert await bench.states(job_id) == ["queued", "running", "succeeded"]


async def test_a_cancel_that_meets_a_shutdown_wins(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("write"))
    claim = await bench.ledger.claim(job_id, bench.worker, LONG_LEASE_SECONDS)
    assert isinstance(claim, Claim)
    await bench.ledger.cancel(job_id)

    assert await bench.ledger.release(job_id, claim.token, "its worker stops")

    assert (await bench.ended(job_id)).state is JobState.CANCELLED
    assert not await bench.ledger.finish(job_id, claim.token, make_result(job_id), {})
