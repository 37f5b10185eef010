"""Work that costs much, asked for by one owner: it is bounded, and others do not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from fanout.orchestrator import output_schema
from fanout.orchestrator.bounded_process import ProcessBounds
from fanout.orchestrator.deep_agent.skills import front_matter
from fanout.orchestrator.git.process import GitFailed, run_git
from fanout.orchestrator.output_schema import InvalidOutputSchema, check_schemas
from fanout.orchestrator.server.middleware import MAX_VALUES, ValidBodies
from fanout.orchestrator.turns import OwnerTurns, TooManyWaiting, working_for
from fanout.orchestrator.workspace.exchange import cloned


async def test_work_of_one_owner_waits_behind_its_own_and_others_have_their_turn() -> None:
    turns = OwnerTurns(at_once=3, of_one_owner=2, waiting_of_one_owner=4)
    begun: list[str] = []
    end = asyncio.Event()

    async def work(name: str) -> None:
        with working_for(name[0]):
            async with turns.turn():
                begun.append(name)
                await end.wait()

    async with asyncio.TaskGroup() as group:
        for name in ("a1", "a2", "a3", "a4", "b1", "c1", "c2"):
            group.create_task(work(name))
        await settled()
        assert begun == ["a1", "a2", "b1"]
        end.set()
    assert begun[3:5] in (["a3", "c1"], ["c1", "a3"])


async def test_work_that_waits_is_counted_and_refused_and_a_cancelled_one_leaves_its_place() -> (
    None
):
    turns = OwnerTurns(at_once=2, of_one_owner=1, waiting_of_one_owner=1)
    end = asyncio.Event()

    async def work(owner: str) -> None:
        async with turns.turn(owner):
            await end.wait()

    running, waiting = asyncio.create_task(work("a")), asyncio.create_task(work("a"))
    await settled()
    with pytest.raises(TooManyWaiting):
        await work("a")
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    end.set()
    await asyncio.gather(running, work("a"), work("b"))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("program", "bounds"),
    [
        ("bytearray(1 << 30)", {"memory_bytes": 256 * 1024**2}),
        ("while True: pass", {"cpu_seconds": 1}),
        ("open('file', 'wb').write(bytes(1 << 20))", {"file_bytes": 4096}),
    ],
    ids=["memory", "processor time", "file size"],
)
def test_a_process_cannot_have_more_than_its_bounds(
    tmp_path: Path, program: str, bounds: dict[str, Any]
) -> None:
    command = ProcessBounds(**({"memory_bytes": 1024**3, "cpu_seconds": 20} | bounds)).command(
        [sys.executable, "-B", "-I", "-c", program]
    )
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode != 0
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 4096


def test_an_object_that_says_that_it_has_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    run_git(["init", "--quiet", "--template=", "."], folder=tmp_path, git_dir=tmp_path / ".git")
    header = b"tree 5368709120\0"
    name = hashlib.sha1(header, usedforsecurity=False).hexdigest()
    place = tmp_path / ".git" / "objects" / name[:2] / name[2:]
    place.parent.mkdir()
    place.write_bytes(zlib.compress(header + bytes(100)))
    with pytest.raises(GitFailed, match="memory"):
        run_git(["ls-tree", name], folder=tmp_path, git_dir=tmp_path / ".git")


def test_trees_inside_each_other_are_counted_before_they_are_checked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str, stdin: bytes = b"") -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example")
        ended = subprocess.run(
            ["git", *identity, *arguments],
            cwd=tmp_path,
            input=stdin,
            check=True,
            capture_output=True,
        )
        return ended.stdout.decode().strip()

    git("init", "-q")
    blob = git("hash-object", "-w", "--stdin", stdin=b"x")
    tree = git("mktree", stdin=f"100644 blob {blob}\tf\n".encode())
    for _ in range(4):
        entries = "".join(f"040000 tree {tree}\t{number}\n" for number in range(14))
        tree = git("mktree", stdin=entries.encode())
    commit = git("commit-tree", tree, "-m", "bomb")
    (tmp_path / ".git" / "FETCH_HEAD").write_text(f"{commit}\n")
    fetched = cloned._Git(tmp_path, time.monotonic() + 60, 10**6, lambda: True)
    with pytest.raises(GitFailed, match="25,000 folders"):
        fetched.require_small()
    monkeypatch.setattr(cloned, "MAX_LISTED_BYTES", 100_000)
    with pytest.raises(GitFailed, match="wrote too much"):
        fetched.require_small()


def test_front_matter_that_is_nested_too_deeply_is_not_read_to_its_end() -> None:
    nested = "---\nname: deep\nx: " + "[" * 100 + "]" * 100 + "\n---\n"
    assert "not YAML" in front_matter(nested, texts=()).fault
    assert not front_matter(nested.replace("[" * 90 + "]" * 90, ""), texts=()).fault


def test_schemas_of_jobs_that_are_submitted_at_once_share_one_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schemas: list[dict[str, Any]] = [{"enum": [number]} for number in range(3)]
    check_schemas([*schemas, *schemas])
    monkeypatch.setattr(output_schema, "SEVERAL_SECONDS", -1.0)
    with pytest.raises(InvalidOutputSchema, match="submit fewer at once"):
        check_schemas(schemas)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" + b"[]," * MAX_VALUES + b"[]]", 413),
        (b'["' + b",[{" * 2 * MAX_VALUES + b'\\"{", 1]', 200),  # one text
        (b'["' + b"x" * 1024**2 + b'"]', 200),
    ],
    ids=["values", "signs in a text", "text"],
)
async def test_json_of_too_many_values_is_refused_before_it_is_parsed(
    body: bytes, status: int
) -> None:
    app = FastAPI()

    @app.post("/")
    async def parsed(request: Request) -> int:
        return len(json.loads(await request.body()))

    transport = httpx.ASGITransport(ValidBodies(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        answer = await client.post("/", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
