r"""Jobs with text that UTF-8 cannot hold, and with files whose names are no UTF-8."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.workspace import Workspace
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, call, calls, conversation, says
from tests.repositories import git

HALF = "\ud83d"
LATIN, SHOWN = b"caf\xe9.txt", r"caf\xe9.txt"

SCRIPT = (
    conversation(
        "halves",
        {
            "text": f"hm {HALF}",
            **calls(
                call("execute", command=f"echo '{HALF}' > out.txt; cat out.txt"),
                call("write_file", file_path=f"/workspace/a{HALF}.txt", content=f"one {HALF}\n"),
                call("write_todos", todos=[{"content": f"x{HALF}", "status": "in_progress"}]),
                call("ls", **{f"pa{HALF}th": "/workspace"}),
                call(f"no{HALF}tool"),
                call("ls", path="/workspace"),
            ),
        },
        says(f"Well {HALF}.\n\n## Summary\nDone {HALF}."),
    ),
    conversation("structured", says('{"answer": "\\ud83d"}')),
    conversation(
        "latin",
        calls(
            call("ls", path="/workspace"),
            call("glob", pattern="**/*.txt"),
            call("glob", pattern=SHOWN),
            call("grep", pattern="latin", output_mode="content"),
            call("read_file", file_path=f"/workspace/{SHOWN}"),
        ),
        calls(
            call(
                "edit_file",
                file_path=f"/workspace/{SHOWN}",
                old_string="latin",
                new_string="edited",
            ),
            call("write_file", file_path=r"/workspace/new\xFF/é.txt", content="new\n"),
            call("write_file", file_path=r"/workspace/caf\x5cxe9.txt", content="other\n"),
            call("delete_file", file_path=r"/workspace/gone\xe9"),
            call("execute", command=r"mv moved* \"$(printf 'to\351')\"".replace('\\"', '"')),
        ),
        calls(call("read_file", file_path=r"/workspace/missing\xe9")),
        DONE,
    ),
)


bench = bench_fixture(*SCRIPT)


async def results_of(bench: Bench, job_id: str) -> list[dict[str, Any]]:
    """The results of the job's tools, in the order of the calls."""
    found = []
    for event in await bench.journal.read(job_id):
        event.model_dump_json().encode()
        if event.type is EventType.TOOL_RESULT:
            whole: Any = event.data["event"]
            parts = whole["content"]["parts"]
            found += [part["function_response"]["response"] for part in parts]
    return found


async def worked_off(bench: Bench, job_id: str) -> JobResult:
    await bench.work_off()
    result = await bench.ended(job_id)
    assert result.success, result.error
    return result


async def test_half_a_character_anywhere_in_a_reply_is_replaced_and_the_model_is_told(
    bench: Bench,
) -> None:
    spec = make_spec(f"halves {HALF}", context=HALF, labels={f"k{HALF}": HALF})
    job_id = await bench.submit(spec)

    result = await worked_off(bench, job_id)

    assert result.summary == "Done �."
    shell, written, todos, wrong, unknown, listed = await results_of(bench, job_id)
    assert shell["output"] == "�\n"
    assert "U+FFFD" in shell["note"]
    assert (written["status"], written["path"]) == ("success", "/workspace/a�.txt")
    assert "U+FFFD" in written["note"]
    assert todos["status"] == "success"
    assert "pa�th" in wrong["error"]
    assert "no_tool" in str(unknown)
    assert "note" not in listed
    assert {file.path for file in result.files_modified} == {"a�.txt", "out.txt"}
    record = await bench.ledger.get(job_id)
    assert (record.description, record.labels) == ("halves �", {"k�": "�"})


async def test_half_a_character_in_a_structured_answer_is_replaced(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    job_id = await bench.submit(make_spec("structured", output_schema=schema))

    assert (await worked_off(bench, job_id)).output == {"answer": "�"}


@asynccontextmanager
async def collect_changes(bench: Bench, result: JobResult) -> AsyncIterator[ChangeBundle]:
    path = await bench.blobs.fetch(str(result.changes))
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, ChangeBundle.open(path))


def prepared(folder: Path) -> Path:
    folder.mkdir()
    for name in (LATIN, b"gone\xe9", b"moved\xe9"):
        (folder / os.fsdecode(name)).write_bytes(b"latin " + name.hex().encode() + b"\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "start")
    return folder


def files_of(folder: Path) -> dict[bytes, bytes]:
    return {
        os.fsencode(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


EXPECTED = {
    LATIN: b"edited " + LATIN.hex().encode() + b"\n",
    "new\udcff/é.txt".encode(errors="surrogateescape"): b"new\n",
    rb"caf\xe9.txt": b"other\n",
    b"to\xe9": b"latin " + b"moved\xe9".hex().encode() + b"\n",
}


async def test_a_name_that_is_no_utf_8_goes_through_tools_result_merge_and_patch(
    bench: Bench, tmp_path: Path
) -> None:
    root = await asyncio.to_thread(prepared, tmp_path / "work")
    snapshot = await Workspace(root).snapshot(bench.blobs)
    job_id = await bench.submit(make_spec("latin", snapshot=snapshot))

    result = await worked_off(bench, job_id)

    found = await results_of(bench, job_id)
    ls, every, one, hits, read, *changed, missing = found
    assert f"/workspace/{SHOWN}" in [entry["path"] for entry in ls["entries"]]
    assert {entry["path"] for entry in every["entries"]} == {f"/workspace/{SHOWN}"}
    assert [entry["path"] for entry in one["entries"]] == [f"/workspace/{SHOWN}"]
    assert f"/workspace/{SHOWN}:1:latin" in hits["result"]
    assert "latin" in str(read)
    assert {step["status"] for step in changed} == {"success"}, changed
    assert r"/workspace/missing\xe9" in missing["error"]

    files = {file.path: file for file in result.files_modified}
    assert {path: str(file.change) for path, file in files.items()} == {
        SHOWN: "modified",
        r"new\xff/é.txt": "added",
        r"caf\x5cxe9.txt": "added",
        r"gone\xe9": "deleted",
        r"to\xe9": "renamed",
    }
    assert base64.b64decode(str(files[SHOWN].path_bytes)) == LATIN
    assert base64.b64decode(str(files[r"to\xe9"].from_path_bytes)) == b"moved\xe9"

    async with collect_changes(bench, result) as bundle:
        patch = await asyncio.to_thread(bundle.patch)
        report = await merge(Workspace(root), bundle)
        again = await merge(Workspace(root), bundle)
    assert report.complete, report
    assert {one.how for one in again.applied} <= {"already", "taken"}
    assert files_of(root) == EXPECTED

    other = await asyncio.to_thread(prepared, tmp_path / "other")
    await asyncio.to_thread(subprocess.run, ["git", "apply"], cwd=other, input=patch, check=True)
    assert files_of(other) == EXPECTED


async def test_a_conflict_in_a_file_whose_name_is_no_utf_8_is_reported_by_its_text(
    bench: Bench, tmp_path: Path
) -> None:
    root = await asyncio.to_thread(prepared, tmp_path / "work")
    snapshot = await Workspace(root).snapshot(bench.blobs)
    job_id = await bench.submit(make_spec("latin", snapshot=snapshot))
    result = await worked_off(bench, job_id)
    (root / os.fsdecode(LATIN)).write_bytes(b"somebody else\n")

    async with collect_changes(bench, result) as bundle:
        report = await merge(Workspace(root), bundle)

    assert [conflict.path for conflict in report.conflicts] == [SHOWN]
    report.model_dump_json()
    assert files_of(root)[LATIN] == b"somebody else\n"
