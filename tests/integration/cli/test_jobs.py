"""The commands that ask for jobs and look at them, on a real Redis, without a worker."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import signal
import tarfile
from typing import Any

import pytest

from fanout.orchestrator.jobs.changes import ChangedFile, ChangeKind, Changes, FileVersion
from fanout.orchestrator.jobs.result import JobError
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.reservation_store import CallSize, SharedLimit
from tests.integration.cli.conftest import Fanout, StandIn
from tests.waits import eventually

pytestmark = pytest.mark.redis


def submitted(fanout: Fanout, *arguments: str) -> str:
    ended = fanout("submit", *arguments)
    assert ended.code == 0, ended.err
    return ended.out.strip()


def lines_of(*jobs: dict[str, object]) -> str:
    return "".join(json.dumps(job) + "\n" for job in jobs)


def test_a_submitted_job_is_listed_with_the_reason_why_it_waits(fanout):
    job_id = submitted(
        fanout, "Tidy the attic", "--agent", "researcher", "--label", "team=blue", "--timeout", "7"
    )

    listed = fanout("ps")
    record = fanout("show", job_id[:20], "--json").json

    assert job_id[-8:] in listed.out.split()
    assert job_id in fanout("ps", "--full-ids").out.split()
    assert job_id in fanout("--full-ids", "ps").out.split()
    assert "none is running" in listed.out
    assert "\x1b" not in listed.out
    assert record["agent"] == "researcher"
    assert record["labels"] == {"team": "blue"}
    assert record["limits"]["timeout_seconds"] == 7
    assert record["state"] == "queued"
    assert record["trace_id"] in fanout("show", job_id).out.split()


def test_a_file_of_jobs_becomes_one_tree_in_order(fanout):
    text = lines_of(
        {"description": "one"}, {"description": "two", "agent": "tester"}, {"description": "three"}
    )

    ids = fanout("submit", "--file", "-", "--json", "--label", "batch=7", stdin=text).json[
        "job_ids"
    ]
    tree = fanout("tree", ids[2], "--json").json["jobs"]

    assert [job["description"] for job in tree] == ["one", "two", "three"]
    assert [job["id"] for job in tree] == ids
    assert {job["labels"]["batch"] for job in tree} == {"7"}


def test_a_long_list_whose_reader_leaves_ends_without_an_error(fanout):
    jobs = [{"description": "count the lines " * 50} for _ in range(200)]
    fanout("submit", "--file", "-", stdin=lines_of(*jobs))

    listing = fanout.start("ps", "--all", "--json")
    assert listing.stdout.read(1) == b"{"
    listing.stdout.close()

    assert listing.wait(60) == 0
    assert listing.stderr.read() == b""


def test_every_bad_line_is_named_and_nothing_is_submitted(fanout):
    text = (
        '{"description": "fine"}\n'
        "\n"
        "not json\n"
        '{"description": "x", "agent": "nobody"}\n'
        '{"description": "x", "colour": "red"}\n'
        '{"description": "x", "workspace": "missing"}\n'
        '{"description": ""}\n'
        '{"description": "x", "limits": {"timeout_seconds": -1}}\n'
        '{"description": "x", "depth": 3}\n'
        "[1]\n"
    )
    (fanout.folder / "jobs.jsonl").write_text(text)

    ended = fanout("submit", "--file", "jobs.jsonl")

    assert ended.code == 2
    assert ended.out == ""
    for number in (3, 4, 5, 6, 7, 8, 9, 10):
        assert f"jobs.jsonl:{number}: " in ended.err
    assert "jobs.jsonl:1:" not in ended.err
    assert "'colour'" in ended.err
    assert "Traceback" not in ended.err
    assert fanout("ps", "--all", "--json").json == {"jobs": []}


def test_a_thousand_lines_are_submitted(fanout):
    (fanout.folder / "ws").mkdir()
    (fanout.folder / "ws" / "a.txt").write_text("a")
    text = lines_of(
        *({"description": f"job {number}", "workspace": "ws"} for number in range(1000))
    )

    ids = fanout("submit", "--file", "-", stdin=text).out.split()

    assert len(set(ids)) == 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit"], "Specify either a description or --file"),
        (["submit", "x", "--file", "y"], "Specify either a description or --file"),
        (["submit", "x", "--agent", "nobody"], "nobody"),
        (["submit", "x", "--workspace", "/does/not/exist"], "/does/not/exist"),
        (["submit", "x", "--label", "novalue"], "KEY=VALUE"),
        (["submit", "--file", "absent.jsonl"], "absent.jsonl"),
        (["submit", "x", "--timeout", "soon"], "--timeout"),
        (["show", "nothing"], "There is no job nothing"),
        (["ps", "--state", "asleep"], "succeeded"),
        (["apply", "x", "--into", "/does/not/exist"], "/does/not/exist"),
        (["dance"], "dance"),
    ],
)
def test_wrong_usage_is_said_in_words_on_stderr(fanout, arguments, words):
    ended = fanout(*arguments)

    assert ended.code == 2
    assert ended.out == ""
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_without_redis_the_way_out_is_named(lonely_fanout):
    for arguments in (["ps"], ["submit", "x"], ["wait", "x"]):
        ended = lonely_fanout(*arguments)
        assert (ended.code, ended.out) == (3, "")
        assert ended.err == "No Redis: set FANOUT_REDIS_URL, or start one here with `fanout up`.\n"


def test_an_unreachable_redis_is_exit_code_three_without_its_address(lonely_fanout):
    ended = lonely_fanout("ps", env={"FANOUT_REDIS_URL": "redis://:hush@127.0.0.1:1/0"})

    assert ended.code == 3
    assert "does not answer" in ended.err
    assert "hush" not in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_wrong_setting_is_named(lonely_fanout):
    ended = lonely_fanout("config", env={"FANOUT_WORKER__CONCURRENCY": "many"})

    assert ended.code == 2
    assert "FANOUT_WORKER__CONCURRENCY" in ended.err


def test_an_ambiguous_id_is_refused(fanout):
    fanout(
        "submit",
        "--file",
        "-",
        stdin=lines_of({"id": "same1", "description": "x"}, {"id": "same2", "description": "y"}),
    )

    ended = fanout("show", "same")

    assert ended.code == 2
    assert "may mean" in ended.err
    assert "so name one: " in ended.err


async def test_wait_prints_how_jobs_ended(fanout, stand_in: StandIn):
    good, bad, late = (submitted(fanout, text) for text in ("good", "bad", "late"))
    await stand_in.finish(good, summary="all well")
    await stand_in.finish(
        bad, JobState.FAILED, error=JobError(type="AgentFailed", message="no answer")
    )
    await stand_in.finish(late, JobState.TIMED_OUT)

    both = fanout("wait", good, bad)
    only_good = fanout("wait", good, "--json")

    assert both.code == 1
    failed = f"{bad[-8:]}  failed  no answer"
    assert both.out.splitlines() == [f"{good[-8:]}  succeeded", "all well", failed]
    step, total = both.err.splitlines()
    assert step == f"  To see what it did: fanout logs {bad[-8:]}"
    assert total.startswith("Total: 0 model calls")
    assert only_good.code == 0
    assert only_good.json["usage"]["model_calls"] == 0
    (one,) = only_good.json["jobs"]
    assert (one["id"], one["summary"]) == (good, "all well")
    assert fanout("wait", late, good).code == 5


def test_a_wait_that_takes_too_long_is_exit_code_five(fanout):
    job_id = submitted(fanout, "never")

    ended = fanout("wait", job_id, "--timeout", "0.3")

    assert ended.code == 5
    assert "0 of 1 job ended within 0.3 s; the job continues" in ended.err
    assert fanout("show", job_id, "--json").json["state"] == "queued"


async def test_why_a_job_failed_stands_beside_it(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")
    message = "The model gave no answer\x1b[2J in 3.5 s. See the logs."
    error = JobError(type="AgentFailed", message=message)
    await stand_in.finish(job_id, JobState.FAILED, error=error)

    why = "The model gave no answer\N{SYMBOL FOR ESCAPE}[2J in 3.5 s."
    summary = ["tree", job_id, "--summary"]
    wide = {"COLUMNS": "200"}
    for command in (["ps", "--all"], ["tree", job_id], summary, ["watch", job_id]):
        said = fanout(*command, env=wide).out
        assert why in said, command
        assert "See the logs" not in said
    (record,) = fanout("ps", "--all", "--json").json["jobs"]
    assert record["reason"] == message
    assert record["error_type"] == "AgentFailed"
    assert record["next_step"] == f"To see what it did: fanout logs {job_id[-8:]}"


async def test_history_and_cost_say_what_was_done_and_how_to_go_on(fanout, stand_in: StandIn):
    old = submitted(fanout, "tidy up", "--label", "team=a")
    claim = await stand_in.claim(old)
    spent = {"model_calls": 1, "input_tokens": 90, "output_tokens": 9, "cost_usd": 0.5}
    await stand_in.charge(claim, spent, "gemini-x")
    error = JobError(type="AgentFailed", message="No answer. And more.")
    await stand_in.finish(old, JobState.FAILED, claim=claim, error=error)
    new = submitted(fanout, "write\x1b[2J a test")

    listed = fanout("history")
    page = fanout("history", "--limit", "1", "--json").json
    rest = fanout("history", "--before", new, "--json").json
    by = {
        by: fanout("cost", "--by", by, "--json").json for by in ("agent", "model", "day", "label")
    }
    shown = fanout("cost", "--by", "label", "--label", "team")

    assert [line.split()[0] for line in listed.out.splitlines()] == ["ID", new[-8:], old[-8:]]
    assert "failed: No answer." in listed.out
    assert "\x1b" not in listed.out
    assert 'fanout run --continue ID "…"' in listed.err
    assert [run["id"] for run in page["runs"]] == [new]
    assert page["before"] == new
    (run,) = rest["runs"]
    assert run["next"] == f"fanout run --continue {old}"
    assert (run["goal"], run["state"], run["usage"]["cost_usd"]) == ("tidy up", "failed", 0.5)
    assert rest["before"] is None
    names = {key: [group["name"] for group in document["groups"]] for key, document in by.items()}
    assert names["agent"] == ["general-purpose"]
    assert names["model"] == ["gemini-x"]
    assert names["label"] == ["team=a", "(no label)"]
    assert {document["total"]["usage"]["cost_usd"] for document in by.values()} == {0.5}
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["a", "(no", "total"]
    assert "whose records still exist" in shown.err
    assert fanout("cost", "--label", "team").code == 2
    assert fanout("cost", "--by", "colour").code == 2


async def test_tree_and_cost_say_what_is_reserved_and_what_is_left(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")
    claim = await stand_in.claim(job_id)
    size = CallSize("a-model", 1000, 8000, 4096, input_usd=0.05, output_usd=0.000_025)
    limit = SharedLimit(job_id, max_tokens=100_000, max_cost_usd=1.0)
    await stand_in.reserve(claim, size, limit)

    said, document = fanout("tree", job_id).err, fanout("tree", job_id, "--json").json
    cost, costs = fanout("cost").err, fanout("cost", "--json").json

    assert "Of max_cost_usd=1.0: $0.2500 reserved, $0.7500 left" in said
    assert "Of max_tokens=100,000: 9,000 reserved, 91,000 left" in said
    assert document["budget"]["left_cost_usd"] == 0.75
    assert "$0.2500 more is reserved for model calls in progress." in cost
    assert costs["total"]["reserved_cost_usd"] == 0.25


async def test_an_id_may_be_named_by_its_end(fanout):
    job_id = submitted(fanout, "x")

    for end in (job_id[-8:], f"…{job_id[-6:]}"):
        assert fanout("show", end, "--json").json["id"] == job_id
    assert fanout("show", "…").code == 2


async def test_submit_wait_as_json_is_one_document_with_the_result(fanout, stand_in: StandIn):
    done = submitted(fanout, "before")
    await stand_in.finish(done, summary="It is done.")
    spec = lines_of({"id": done, "description": "before"})

    waited = fanout("submit", "--file", "-", "--wait", "--json", stdin=spec)

    assert waited.json["job_ids"] == [done]
    assert waited.json["results"][0]["summary"] == "It is done."
    assert waited.json["usage"]["cost_usd"] is None


async def test_submit_wait_prints_the_id_first_and_then_the_end(fanout, stand_in: StandIn):
    child = fanout.start("submit", "quick", "--wait")
    assert child.stdout is not None
    job_id = (await asyncio.to_thread(child.stdout.readline)).decode().strip()

    await stand_in.finish(job_id, JobState.CANCELLED)
    rest, complaint = await asyncio.to_thread(child.communicate, timeout=60)

    assert rest.decode() == f"{job_id[-8:]}  cancelled\n"
    assert child.returncode == 1
    assert complaint.splitlines()[-1].startswith(b"Total: 0 model calls")


@pytest.mark.parametrize("forked", [True, False])
async def test_interrupting_a_wait_leaves_the_job_alone(fanout, ledger_url: str, forked: bool):
    job_id = submitted(fanout, "long")
    child = fanout.start("wait", job_id, forked=forked)
    async with connect(ledger_url) as redis, asyncio.timeout(60):
        await eventually(lambda: redis.pubsub_channels(Keys().job_ended(job_id)))

    child.send_signal(signal.SIGINT)
    out, complaint = await asyncio.to_thread(child.communicate, timeout=60)

    assert child.returncode == 130
    assert out == b""
    assert f"fanout wait {job_id[-8:]}" in complaint.decode()
    assert b"Traceback" not in complaint
    assert fanout("show", job_id, "--json").json["state"] == "queued"


async def test_a_result_is_there_when_the_job_has_ended(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")

    early = fanout("result", job_id)
    await stand_in.finish(job_id, summary="Done\x1b[31m.")
    late = fanout("result", job_id)

    assert early.code == 1
    assert "has not ended" in early.err
    assert late.code == 0
    assert "summary" in late.out
    assert "\x1b" not in late.out
    assert late.out.splitlines()[-1] == "Done\N{SYMBOL FOR ESCAPE}[31m."
    assert fanout("result", job_id, "--json").json["id"] == job_id


async def test_logs_are_json_lines_of_the_journal(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")
    claim = await stand_in.claim(job_id)
    call = {"id": "call-1", "tool": "execute", "arguments": {"command": "ls\x1b[2J"}}
    await stand_in.note(claim, EventType.TOOL_CALL, call)

    events = [json.loads(line) for line in fanout("logs", job_id, "--json").out.splitlines()]
    plain = fanout("logs", job_id).out

    assert [event["type"] for event in events] == ["job.state", "job.state", "tool.call"]
    assert events[-1]["data"]["tool"] == "execute"
    assert set(events[0]) == {"id", "at", "job_id", "attempt", "type", "data"}
    assert "execute" in plain
    assert "\x1b" not in plain
    assert fanout("logs", job_id, "--after", events[1]["id"], "--json").out.count("\n") == 1


async def test_logs_for_people_have_no_ids_of_engines(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")
    claim = await stand_in.claim(job_id)
    host, container = "2XVK:5ZPW:DN4N", "72e339e9" * 8
    ready: dict[str, Any] = {"sandbox": "docker", "host": host, "files": container}
    await stand_in.note(claim, EventType.SANDBOX_READY, ready | {"resumed": True})
    await stand_in.note(claim, EventType.CHECKPOINT, {"changes": container})
    error = {"type": "SandboxFailed", "message": f"no such container: {container}"}
    await stand_in.note(claim, EventType.JOB_STATE, {"state": "failed", "error": error})

    plain = fanout("logs", job_id).out

    assert not {host, container, "h1"} & set(plain.replace(",", " ").split())
    assert "docker, with the files of the previous attempt" in plain
    assert "failed: no such container: (id)" in plain
    assert container in fanout("logs", job_id, "--json").out


async def test_following_logs_ends_with_the_job(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")
    child = fanout.start("logs", "-f", job_id, "--json")
    assert child.stdout is not None
    first = json.loads(await asyncio.to_thread(child.stdout.readline))

    await stand_in.finish(job_id)
    rest, _ = await asyncio.to_thread(child.communicate, timeout=60)

    assert first["data"]["state"] == "queued"
    assert json.loads(rest.splitlines()[-1])["data"]["state"] == "succeeded"
    assert child.returncode == 0


async def test_watch_without_a_terminal_prints_changes(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "watched")
    child = fanout.start("watch", job_id)
    assert child.stdout is not None
    first = (await asyncio.to_thread(child.stdout.readline)).decode()

    await stand_in.finish(job_id)
    rest, complaint = await asyncio.to_thread(child.communicate, timeout=60)

    assert first.split()[:2] == [job_id[-8:], "queued"]
    assert rest.decode().splitlines()[-1].split()[:2] == [job_id[-8:], "succeeded"]
    assert (child.returncode, complaint) == (0, b"")


async def test_cancel_says_what_had_ended_already(fanout, stand_in: StandIn):
    waiting, ended_job = submitted(fanout, "waiting"), submitted(fanout, "ended")
    await stand_in.finish(ended_job)

    ended = fanout("cancel", waiting, ended_job)

    assert ended.code == 0
    assert ended.out == f"{waiting[-8:]}  cancelled (it was queued)\n"
    assert f"{ended_job[-8:]} has already ended: succeeded." in ended.err
    assert fanout("result", waiting, "--json").json["state"] == "cancelled"
    assert fanout("ps", "--json").json == {"jobs": []}
    assert len(fanout("ps", "--all", "--json").json["jobs"]) == 2
    assert [job["id"] for job in fanout("ps", "--state", "cancelled", "--json").json["jobs"]] == [
        waiting
    ]


def test_retry_gives_a_new_id(fanout):
    job_id = submitted(fanout, "again", "--label", "a=b")

    new_id = fanout("retry", job_id).out.strip()

    record = fanout("show", new_id, "--json").json
    assert new_id != job_id
    assert (record["description"], record["labels"]) == ("again", {"a": "b"})


def make_bundle(path: str, before: bytes, after: bytes) -> tuple[bytes, ChangedFile]:
    """A change bundle with one modified file."""
    names = [hashlib.sha256(content).hexdigest() for content in (before, after)]
    versions = [
        FileVersion(kind="file", mode=0o644, sha256=name, size_bytes=len(content))
        for name, content in zip(names, (before, after), strict=True)
    ]
    file = ChangedFile(
        path=path,
        change=ChangeKind.MODIFIED,
        lines_added=1,
        lines_removed=1,
        before=versions[0],
        after=versions[1],
    )
    members = {
        "changes.json": Changes(files=(file,)).model_dump_json().encode(),
        f"objects/{names[0]}": before,
        f"objects/{names[1]}": after,
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue(), file


async def test_changes_are_shown_checked_and_applied(fanout, stand_in: StandIn):
    data, file = make_bundle("f.txt", b"\xffold\n", b"new\n")
    job_id = submitted(fanout, "x")
    changes = await stand_in.blobs.put(data)
    await stand_in.finish(job_id, changes=changes, files_modified=Changes(files=(file,)).summary())
    target = fanout.folder / "into"
    target.mkdir()
    (target / "f.txt").write_bytes(b"\xffold\n")

    raw = await asyncio.to_thread(raw_output, fanout, "diff", job_id)
    stat = fanout("diff", job_id, "--stat")
    checked = fanout("apply", job_id, "--into", "into", "--check")
    after_check = (target / "f.txt").read_bytes()
    applied = fanout("apply", job_id, "--into", "into", "--json")

    assert raw.startswith(b"diff --git a/f.txt b/f.txt\nindex ")
    assert raw.endswith(b"\n--- a/f.txt\n+++ b/f.txt\n@@ -1 +1 @@\n-\xffold\n+new\n")
    assert "1 file changed, +1 -1" in stat.out
    assert (checked.code, after_check) == (0, b"\xffold\n")
    assert applied.json["applied"][0]["path"] == "f.txt"
    assert (target / "f.txt").read_bytes() == b"new\n"
    assert fanout("apply", job_id, "--into", "into").code == 0

    (target / "f.txt").write_bytes(b"another\n")
    conflicting = fanout("apply", job_id, "--into", "into")
    assert conflicting.code == 1
    assert "conflict  f.txt" in conflicting.err
    assert (target / "f.txt").read_bytes() == b"another\n"


def raw_output(fanout: Fanout, *arguments: str) -> bytes:
    child = fanout.start(*arguments)
    return child.communicate(timeout=60)[0]


async def test_a_job_without_changes_has_an_empty_diff(fanout, stand_in: StandIn):
    job_id = submitted(fanout, "x")
    await stand_in.finish(job_id)

    ended = fanout("diff", job_id)

    assert (ended.code, ended.out) == (0, "")
    assert "changed nothing" in ended.err


def test_a_closed_pipe_is_quiet(fanout):
    fanout(
        "submit",
        "--file",
        "-",
        stdin=lines_of(*({"description": f"job {number}"} for number in range(500))),
    )
    child = fanout.start("ps", "--json")
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None

    complaint = child.stderr.read()

    assert child.wait(60) == 0
    assert complaint == b""


def test_a_terminal_gets_colour_unless_it_is_not_wanted(fanout):
    submitted(fanout, "colourful")

    coloured = in_terminal(fanout, "ps")
    plain = in_terminal(Fanout(fanout.folder, fanout.env | {"NO_COLOR": "1"}), "ps")

    assert b"\x1b[" in coloured
    assert b"colourful" in plain
    assert b"\x1b[3" not in plain


def in_terminal(fanout: Fanout, *arguments: str) -> bytes:
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(fanout.folder)
        argv = fanout.argv(*arguments)
        os.execve(argv[0], argv, fanout.env | {"COLUMNS": "160"})  # noqa: S606 - a child of a test
    output = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    os.close(terminal)
    os.waitpid(pid, 0)
    return output


def test_agents_and_settings_are_shown_without_secrets(fanout):
    env = {
        "FANOUT_REDIS_URL": "redis://user:hush-hush@127.0.0.1:6379/0",
        "FANOUT_FLOWER__BASIC_AUTH": "me:hush-hush",
        "FANOUT_SANDBOX__PROVIDER": "local",
    }

    shown = fanout("config", "--json", env=env)
    agents = fanout("agents", "--json").json["agents"]

    assert "hush-hush" not in shown.out + fanout("config", env=env).out
    settings = {entry["name"]: entry for entry in shown.json["settings"]}
    assert settings["FANOUT_SANDBOX__PROVIDER"] == {
        "name": "FANOUT_SANDBOX__PROVIDER",
        "value": "local",
        "source": "environment",
    }
    assert settings["FANOUT_WORKER__CONCURRENCY"]["source"] == "default"
    assert {"coordinator", "general-purpose"} <= {agent["name"] for agent in agents}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"limits": {"memory_bytes": 1024**5}},
            "asks for 1,125,899,906,842,624, and this installation gives a job 17,179,869,184 at",
        ),
        ({"limits": {"network": ["169.254.169.254"]}}, "169.254.169.254"),
        ({"output_schema": {"$ref": "http://127.0.0.1:1/"}}, "output_schema refers to"),
    ],
)
def test_a_job_that_asks_for_too_much_is_not_stored(fanout, fields, told):
    ended = fanout("submit", "--file", "-", stdin=lines_of({"description": "x", **fields}))

    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert fanout("ps", "--all", "--json").json == {"jobs": []}
