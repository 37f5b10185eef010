"""The commands that answer jobs, as a person types them; and a coordinator that asks."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from fanout.orchestrator.cli.terminal.exit_codes import ExitCode
from fanout.orchestrator.cli.terminal.live_view import Board
from fanout.orchestrator.jobs.approvals import Approval, approval_id
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.builders import make_spec
from tests.integration.cli.conftest import WORKER, Fanout
from tests.integration.scripts import call, calls, conversation, says
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

FIRST, SECOND = "01aaaaaaaaaaaaaaaaaaaaaaaa", "01bbbbbbbbbbbbbbbbbbbbbbbb"


class Waiting:
    """Jobs that wait for people, made without a worker."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)
        self.ledger = Ledger(self._redis, Keys())
        self.journal = Journal(self._redis, Keys())

    async def park(self, job_id: str, *arguments: dict[str, Any]) -> list[str]:
        await self.ledger.register(WORKER, 60)
        await self.ledger.submit([make_spec(id=job_id, agent="builder")])
        await self.ledger.dispatch(100)
        claim = await self.ledger.claim(job_id, WORKER, 60)
        assert not isinstance(claim, str)
        asked = [
            Approval(
                id=approval_id(job_id, str(number)),
                job_id=job_id,
                agent="builder",
                call_id=str(number),
                tool="execute",
                arguments=given,
                decisions=("approve", "edit", "reject"),
                sha256="0" * 64,
            )
            for number, given in enumerate(arguments)
        ]
        assert await self.ledger.park(job_id, claim.token, asked) is JobState.WAITING
        return [approval.id for approval in asked]

    async def decided(self, job_id: str) -> list[dict[str, Any]]:
        events = await self.journal.read(job_id)
        return [event.data for event in events if event.type is EventType.APPROVAL_RESOLVED]

    async def close(self) -> None:
        await self.journal.close()
        await self._redis.aclose()


@pytest.fixture
async def waiting(ledger_url: str) -> AsyncIterator[Waiting]:
    made = Waiting(ledger_url)
    yield made
    await made.close()


async def run(fanout: Fanout, *arguments: str, **options: Any) -> Any:
    return await asyncio.to_thread(fanout, *arguments, **options)


async def test_what_waits_is_listed_and_an_approved_job_is_queued_again(
    fanout: Fanout, waiting: Waiting
) -> None:
    (approval,) = await waiting.park(FIRST, {"command": "make\nall \x1b[2J"})

    listed = await run(fanout, "approvals")
    document = (await run(fanout, "approvals", "--json")).json["approvals"]
    shown = await run(fanout, "ps")
    approved = await run(fanout, "approve", approval[:8])

    assert [line.split()[:4] for line in listed.out.splitlines()[1:]] == [
        [approval[:11], FIRST[-8:], "builder", "execute"]
    ]
    assert '{"command": "make\\nall' in listed.out
    assert "\x1b" not in listed.out
    assert (document[0]["id"], document[0]["arguments"]["command"]) == (
        approval,
        "make\nall \x1b[2J",
    )
    assert "waits for approval of execute" in shown.out
    assert (approved.code, approved.out) == (
        ExitCode.DONE,
        f"{approval[:11]}  approve  (job {FIRST[-8:]})\n",
    )
    assert (await waiting.ledger.get(FIRST)).state is JobState.QUEUED
    (decided,) = await waiting.decided(FIRST)
    assert decided["by"]
    nothing = await run(fanout, "approvals")
    assert (nothing.out, nothing.err.strip()) == ("", "Nothing waits for an approval.")


async def test_edits_rejections_and_messages_reach_the_journal(
    fanout: Fanout, waiting: Waiting, tmp_path: Path
) -> None:
    one, two, _ = await waiting.park(FIRST, {"command": "a"}, {"command": "b"}, {"command": "c"})
    (tmp_path / "arguments.json").write_text('{"command": "ls"}')

    edited = await run(fanout, "approve", one, "--arguments", "@arguments.json", "--json")
    rejected = await run(fanout, "reject", two, "--message", "not now")
    inline = await run(fanout, "approve", FIRST[-8:], "--arguments", '{"command": "pwd"}')

    assert edited.json == {
        "id": one,
        "approval_id": one,
        "job_id": FIRST,
        "decision": "edit",
    }
    assert (rejected.code, inline.code) == (ExitCode.DONE, ExitCode.DONE), inline.err
    first, second, third = await waiting.decided(FIRST)
    assert first["arguments"] == {"command": "ls"}
    assert (second["decision"], second["message"]) == ("reject", "not now")
    assert third["arguments"] == {"command": "pwd"}
    logs = (await run(fanout, "logs", FIRST)).out
    assert f'approval.requested  {one[:11]} execute {{"command": "a"}}' in logs
    assert f"approval.resolved  {two[:11]} reject by" in logs


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["approve", "nothing"], ExitCode.USAGE, "No approval waits under 'nothing'"),
        (["reject", FIRST], ExitCode.USAGE, "may mean 2 approvals, so name one"),
        (
            ["approve", "ONE", "--respond", "x"],
            ExitCode.NOT_ALLOWED,
            "allowed are approve, edit, reject",
        ),
        (["approve", "ONE", "--arguments", "[1]"], ExitCode.USAGE, "not a JSON object"),
        (["approve", "ONE", "--arguments", "{"], ExitCode.USAGE, "is not JSON"),
        (["approve", "ONE", "--arguments", "@none"], ExitCode.USAGE, "cannot be read"),
        (["approve", "ONE", "--arguments", "{}", "--respond", "x"], ExitCode.USAGE, "not both"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_sentence(
    fanout: Fanout, waiting: Waiting, arguments: list[str], code: ExitCode, words: str
) -> None:
    one, _ = await waiting.park(FIRST, {"command": "a"}, {"command": "b"})

    ended = await run(fanout, *(one if argument == "ONE" else argument for argument in arguments))

    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err
    assert len(await waiting.ledger.approvals()) == 2


async def test_an_answer_that_comes_late_is_told_so(fanout: Fanout, waiting: Waiting) -> None:
    (one,) = await waiting.park(FIRST, {"command": "a"})
    (two,) = await waiting.park(SECOND, {"command": "a"})
    await run(fanout, "reject", one)
    await run(fanout, "cancel", SECOND)

    again = await run(fanout, "approve", one)
    ended = await run(fanout, "approve", two)

    assert (again.code, again.err.strip()) == (
        ExitCode.WORK_FAILED,
        f"{one[:11]} of job {FIRST[-8:]} was answered already: reject.",
    )
    assert (ended.code, ended.err.strip()) == (
        ExitCode.WORK_FAILED,
        f"Job {SECOND[-8:]} has ended, so {two[:11]} needs no answer.",
    )


async def test_a_live_view_says_how_to_answer(fanout: Fanout, waiting: Waiting) -> None:
    (one,) = await waiting.park(FIRST, {"command": "a"})
    watching = await asyncio.to_thread(fanout.start, "watch", FIRST)
    assert watching.stdout is not None
    first = (await asyncio.to_thread(watching.stdout.readline)).decode()
    await run(fanout, "cancel", FIRST)

    out, _ = await asyncio.to_thread(watching.communicate, timeout=20)

    assert f"waiting: approval of execute — fanout approve {one[:11]}" in first + out.decode()


def test_a_narrow_picture_still_names_the_command_that_answers() -> None:
    approval = approval_id(FIRST, "1")
    fields = {
        "state": "waiting",
        "attempt": 0,
        "submitted_at": 0.0,
        "waiting_for": "approval of execute",
    }
    spec = make_spec("a description that takes the place " * 3, id=FIRST)
    record = JobRecord.model_validate({**spec.model_dump(), **fields, "approvals": [approval]})
    console = Console(width=72, file=io.StringIO(), record=True)

    console.print(Board(records=[record]).render(20))

    assert f"waiting: approval of execute — fanout approve {approval[:11]}" in console.export_text()


# A coordinator that asks


COORDINATOR = {
    "name": "careful",
    "description": "Asks first.",
    "instruction": "Do it.",
    "interrupt_on": {"write_file": True},
    "subagents": ["general-purpose"],
}


@pytest.fixture
def careful(install: Installer, tmp_path: Path) -> Fanout:
    """A coordinator that writes one file, after an approval; and a worker."""
    agents, workspace = tmp_path / "agents", tmp_path / "work"
    agents.mkdir()
    workspace.mkdir()
    (agents / "careful.yaml").write_text(yaml.safe_dump(COORDINATOR))
    write = call("write_file", file_path="/workspace/a.txt", content="one")
    place = install(
        conversation("delegate", calls(call("start_task", description="Do it.")), says("Started.")),
        conversation("wait for it", calls(call("task", description="Do it.")), says("Waited.")),
        conversation(".*", calls(write), says("Finished: {{last_result}}")),
        FANOUT_AGENTS_DIR=str(agents),
    )
    place.start_worker()
    return Fanout(workspace, dict(place.environment))


RUN = ("run", "write a file", "--agent", "careful")


async def test_yes_approves_the_coordinators_calls(careful: Fanout) -> None:
    ended = await run(careful, *RUN, "--yes")

    assert ended.code == ExitCode.DONE, ended.err
    assert (careful.folder / "a.txt").read_text() == "one"


async def test_yes_approves_the_calls_of_its_tasks_too(careful: Fanout) -> None:
    ended = await run(careful, "run", "wait for it", "--agent", "careful", "--yes", timeout=60)

    assert (ended.code, ended.out) == (ExitCode.DONE, "Waited.\n"), ended.err
    assert (careful.folder / "a.txt").read_text() == "one"


async def test_without_a_terminal_they_wait_for_another_one(careful: Fanout) -> None:
    child = careful.start(*RUN)
    assert child.stderr is not None
    told = b""
    while "fanout approve" not in told.decode():
        line = await asyncio.to_thread(child.stderr.readline)
        assert line, told
        told += line
    (listed,) = (await run(careful, "approvals", "--json")).json["approvals"]
    assert (await run(careful, "reject", listed["id"], "-m", "not here")).code == 0

    out, err = await asyncio.to_thread(child.communicate, timeout=60)

    assert child.returncode == ExitCode.DONE, err
    assert not (careful.folder / "a.txt").exists()
    assert "They say: not here" in out.decode()
    assert f"fanout approve {listed['id'][:11]}" in told.decode()


async def test_a_coordinators_policy_binds_the_jobs_that_it_starts(careful: Fanout) -> None:
    ended = await run(careful, "run", "delegate it", "--agent", "careful", "--yes")

    assert ended.code == ExitCode.DONE, ended.err
    records = (await run(careful, "ps", "--all", "--json")).json["jobs"]
    (child,) = [record for record in records if record["parent_id"]]
    assert {name: bool(asks) for name, asks in child["interrupt_on"].items()} == {
        "write_file": True
    }


def at_a_terminal(fanout: Fanout, typed: Mapping[str, str]) -> str:
    """Run the coordinator at a terminal, typing an answer whenever its question shows.

    What it showed.
    """
    master, slave = pty.openpty()
    process = subprocess.Popen(
        fanout.argv(*RUN),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=fanout.folder,
        env=fanout.env,
        start_new_session=True,
    )
    os.close(slave)
    shown, left, deadline = "", dict(typed), time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            try:
                shown += os.read(master, 65536).decode(errors="replace")
            except OSError:  # the process has closed its side
                break
            for question in [question for question in left if question in shown]:
                os.write(master, f"{left.pop(question)}\n".encode())
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert not left, shown
    return shown


FOLDER = "Continue?"


async def test_a_person_at_a_terminal_is_shown_the_call_and_may_edit_it(careful: Fanout) -> None:
    edited = '{"file_path": "/workspace/b.txt", "content": "two"}'
    typed = {
        FOLDER: "y",
        "approve, edit, reject?": "maybe",
        "or a prefix of it": "e",
        "on one line": edited,
    }

    shown = await asyncio.to_thread(at_a_terminal, careful, typed)

    assert "wants to call write_file with" in shown
    assert '"content": "one"' in shown
    assert (careful.folder / "b.txt").read_text() == "two"
    assert not (careful.folder / "a.txt").exists()


async def test_a_person_at_a_terminal_may_reject_with_a_reason(careful: Fanout) -> None:
    typed = {FOLDER: "y", "approve, edit, reject?": "rej", "Why (may be empty)?": "wrong folder"}

    shown = await asyncio.to_thread(at_a_terminal, careful, typed)

    assert "They say: wrong folder" in shown
    assert not (careful.folder / "a.txt").exists()
