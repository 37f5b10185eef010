"""What a sub-agent in process cannot see, cannot change and cannot break.

Jobs have it by their sandboxes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.sessions import Session

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from tests.integration.coordinator.driving import Coordination, task
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import recorder, seen

PLAN = [{"content": "the parent's secret plan", "status": "in_progress"}]
CHILDS_PLAN = [{"content": "a plan of its own", "status": "in_progress"}]


def child(name: str, *replies: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "Works.", "model": recorder(name, list(replies)), **more}


def ask(name: str) -> dict[str, Any]:
    return call("task", description=f"work of {name}", subagent_type=name)


async def state_of(run: Run) -> Session:
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session
    return session


async def test_a_child_neither_sees_nor_changes_its_parents_messages_and_todos() -> None:
    spy = child(
        "spy",
        calls(call("read_todos"), call("ls", path="/"), call("grep", pattern="secret")),
        calls(call("write_todos", todos=CHILDS_PLAN)),
        calls(call("read_todos")),
        says("nothing to see"),
    )
    parent = recorder(
        "parent",
        [
            calls(call("write_todos", todos=PLAN)),
            calls(ask("spy")),
            calls(call("read_todos")),
            says("done"),
        ],
    )
    run = await Run(parent, subagents=[spy], instruction="secret instruction").to_end("secret goal")
    assert "secret" not in seen(spy["model"]).replace('"pattern":"secret"', "")
    assert run.results[-1] == {"todos": PLAN}
    assert (await state_of(run)).state["todos"] == PLAN
    assert "a plan of its own" not in seen(parent)


@pytest.mark.parametrize("where", ["state", "directory"])
async def test_a_failed_child_leaves_nothing_and_its_siblings_work_is_kept(
    where: str, tmp_path: Path
) -> None:
    async def explode() -> str:
        """Explode."""
        raise RuntimeError("boom")

    tools: dict[str, Any] = {"tools": [explode], "built_in_tools": ["write_file", "edit_file"]}
    new = call("write_file", file_path="/workspace/new-{}", content="x")
    made = {
        name: {**new, "args": {**new["args"], "file_path": f"/workspace/{name}"}}
        for name in ("bad", "good")
    }
    edit = call("edit_file", file_path="/workspace/old", old_string="old", new_string="changed")
    bad = child(
        "bad",
        calls(made["bad"], edit),
        calls(call("explode")),
        {"raise": "the client broke"},
        **tools,
    )
    good = child("good", calls(made["good"]), calls(call("explode")), says("made"), **tools)
    first = calls(call("write_file", file_path="/workspace/old", content="old"))
    look = calls(call("glob", pattern="**", path="/workspace"))
    parent = recorder("parent", [first, calls(ask("bad"), ask("good")), look, says("on")])
    backend: Backend | None = DirectoryBackend(tmp_path) if where == "directory" else None
    run = await Run(parent, subagents=[bad, good], backend=backend).to_end()
    assert [result["status"] for result in run.results[1:3]] == ["error", "success"]
    paths = {entry["path"] for entry in run.results[3]["entries"]}
    assert paths == {"/workspace/old", "/workspace/good"}
    assert run.text == "on"
    if where == "directory":
        assert (tmp_path / "old").read_text() == "old"


@pytest.mark.redis
async def test_a_failed_job_leaves_nothing_and_its_siblings_work_is_kept(
    coordination: Coordination,
) -> None:
    run = await coordination.run(
        calls(task("fail after: echo half > half.txt"), task("run: echo whole > whole.txt"))
    )
    assert [result["status"] for result in run.results] == ["error", "success"]
    names = sorted(path.name for path in coordination.workspace.iterdir())
    assert names == ["kept.txt", "whole.txt"]
