"""A job's sandbox is opened by what needs it first, and not at all if nothing does."""

from __future__ import annotations

import asyncio
import io
import tarfile

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.sandbox.errors import EngineUnavailable, ImageMissing
from tests.builders import make_spec
from tests.bundles import BundleBuilder
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import LEASE_SECONDS, Bench
from tests.integration.scripts import (
    DONE,
    call,
    calls,
    conversation,
    says,
    shell,
)
from tests.integration.worker.approvals import GUARDED
from tests.integration.worker.children import LEAD, delegates

HOUSE_RULE = "Indent with tabs."
SCRIPT = (
    {"system": HOUSE_RULE, "replies": [says("## Summary\nThe rule was read.")]},
    conversation("^talk", DONE),
    conversation("^plan", calls(call("write_todos", todos=[])), DONE),
    conversation(
        "^side by side",
        calls(*(call("execute", command=f"echo {name} > {name}.txt") for name in "abc")),
        DONE,
    ),
    conversation("^write", shell("echo made > made.txt"), DONE),
    conversation("^delegate", delegates("write a file"), DONE),
)


bench = bench_fixture(
    *SCRIPT,
    agents={"guarded": GUARDED, "lead": LEAD},
    lease_seconds=LEASE_SECONDS,
    retry_pause_seconds=0.01,
)


@pytest.mark.parametrize("description", ["talk", "plan"])
async def test_a_job_without_files_or_commands_opens_no_sandbox(
    bench: Bench, description: str
) -> None:
    job_id = await bench.submit(make_spec(description))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.sandbox, result.changes) == (True, None, None)
    assert result.usage.model_calls
    assert bench.provider.opened == 0
    assert bench.left_behind() == []


async def test_calls_of_one_reply_open_one_sandbox(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("side by side"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert [file.path for file in result.files_modified] == ["a.txt", "b.txt", "c.txt"]
    assert (bench.provider.opened, result.sandbox) == (1, "local")


async def test_a_reply_is_in_the_journal_once_its_sandbox_is_open(bench: Bench) -> None:
    bench.provider.fail_before = [EngineUnavailable("No engine answers.")]
    job_id = await bench.submit(make_spec("write"))

    await bench.work_off()

    result = await bench.ended(job_id)
    kinds = [event.type for event in await bench.journal.read(job_id)]
    assert (result.attempts, [file.path for file in result.files_modified]) == (1, ["made.txt"])
    assert kinds.index(EventType.SANDBOX_READY) < kinds.index(EventType.MODEL_REPLY)
    assert kinds.count(EventType.TOOL_CALL) == 1


async def test_a_sandbox_that_can_never_be_opened_ends_the_job_with_its_reason(
    bench: Bench,
) -> None:
    bench.provider.fail_before = [ImageMissing("There is no image.")]
    job_id = await bench.submit(make_spec("write"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.attempts, result.sandbox) == ("ImageMissing", 1, None)


async def test_a_memory_file_is_read_without_a_sandbox(bench: Bench) -> None:
    snapshot = await bench.blobs.put(archive_of("AGENTS.md", HOUSE_RULE.encode()))
    whole = await bench.submit(make_spec("talk", snapshot=snapshot))
    layer = BundleBuilder()
    layer.edit("AGENTS.md", HOUSE_RULE.encode(), b"Indent with spaces.")
    changed = await bench.blobs.put(layer.build().getvalue())
    edited = await bench.submit(make_spec("talk", snapshot=snapshot, layers=(changed,)))

    await bench.work_off()

    assert (await bench.ended(whole)).summary == "The rule was read."
    assert (await bench.ended(edited)).summary == "Done as asked."
    assert bench.provider.opened == 0


async def test_changes_with_which_a_job_begins_are_reported_though_nothing_is_touched(
    bench: Bench,
) -> None:
    builder = BundleBuilder()
    builder.add("given.txt", builder.file(b"given\n"))
    changes = await bench.blobs.put(builder.build().getvalue())
    job_id = await bench.submit(make_spec("talk", changes=changes))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert [file.path for file in result.files_modified] == ["given.txt"]
    assert (result.success, result.sandbox) == (True, "local")


async def test_a_verification_has_a_sandbox_though_the_agent_needed_none(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("talk", verify="echo checked > checked.txt"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.verified is not None
    assert result.verified.exit_code == 0
    assert [file.path for file in result.files_modified] == ["checked.txt"]


async def test_an_approval_is_awaited_without_a_sandbox(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("write", agent="guarded"))
    await bench.work_off()
    assert (await bench.ledger.get(job_id)).state is JobState.WAITING
    assert bench.provider.opened == 0

    (approval,) = await bench.ledger.approvals()
    await bench.ledger.answer(approval.id, ApprovalAnswer(decision="approve"))
    await bench.admission.pump()
    await bench.work_off()

    result = await bench.ended(job_id)
    assert [file.path for file in result.files_modified] == ["made.txt"]
    assert bench.provider.opened == 1


async def test_children_are_awaited_without_a_sandbox_and_their_changes_land(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("delegate", agent="lead"))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert [file.path for file in result.files_modified] == ["made.txt"]
    assert bench.provider.opened == 2, "the child's, and its parent's to put the changes in"


async def test_a_cancel_while_the_changes_are_put_in_leaves_nothing(bench: Bench) -> None:
    builder = BundleBuilder()
    builder.add("given.txt", builder.file(b"given\n"))
    changes = await bench.blobs.put(builder.build().getvalue())
    bench.provider.may_open.clear()
    job_id = await bench.submit(make_spec("talk", changes=changes))
    working = asyncio.create_task(bench.work_off())
    await bench.provider.opening.wait()

    await bench.ledger.cancel(job_id)
    async with asyncio.timeout(60):
        await working

    assert (await bench.ended(job_id)).state is JobState.CANCELLED
    assert bench.left_behind() == []


def archive_of(name: str, content: bytes) -> bytes:
    """A snapshot of one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
