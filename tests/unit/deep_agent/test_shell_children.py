"""Sub-agents with a shell: what their commands change reaches their parent, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from fanout.orchestrator.deep_agent.backends import overlay
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.delegation import child_files
from tests.integration.scripts import call, calls, says, shell
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import seen
from tests.unit.deep_agent.test_subagents import Guarded, asks, names, parent, worker


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are made; it is empty again after each test."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(child_files, "OUTPUT_ROOT", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def changes(record: Mapping[str, Any]) -> dict[str, str]:
    return {Path(file["path"]).name: file["change"] for file in record["files_modified"]}


async def test_the_general_purpose_sub_agent_has_its_parents_shell(root: Path) -> None:
    child = worker(shell("cat hello"), says("x"), name="general-purpose")
    (root / "hello").write_text("hi there")
    await Run(
        parent(asks("x", "general-purpose")), subagents=[child], backend=LocalShellBackend(root)
    ).to_end()
    assert "hi there" in seen(child["model"])


async def test_what_commands_and_file_tools_change_is_one_state_and_arrives_at_the_end(
    root: Path, copies: Path
) -> None:
    for name in ("kept", "changed", "gone", "sub/gone"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("old\n")
    child = worker(
        calls(call("write_file", file_path=f"{root}/typed", content="typed\n")),
        shell(
            "cat typed; echo more >> changed; rm -r gone sub; echo 'echo run' > s.sh; "
            "chmod +x s.sh; mkdir new; echo n > new/n"
        ),
        calls(call("read_file", file_path=f"{root}/changed"), call("ls", path=str(root))),
        shell("cat s.sh && ./s.sh"),
        says("done"),
    )
    run = await Run(parent(asks()), subagents=[child], backend=LocalShellBackend(root)).to_end()
    (record,) = run.results
    assert changes(record) == {
        "typed": "added", "changed": "modified", "gone": "deleted", "s.sh": "added", "n": "added",
    }  # fmt: skip
    assert "more" in seen(child["model"])
    assert names(root) == ["changed", "kept", "new", "s.sh", "typed"]
    assert (root / "new" / "n").read_text() == "n\n"
    assert (root / "changed").read_text() == "old\nmore\n"
    assert os.access(root / "s.sh", os.X_OK)
    assert not (root / "sub").exists()
    assert names(copies) == []


async def test_what_a_childs_commands_left_running_ends_with_it_and_its_parents_does_not(
    root: Path,
) -> None:
    left = "sleep 77 & echo $! > {0}1; setsid sleep 77 & echo $! > {0}2"
    child = worker(shell(left.format("child")), says("x"))
    model = parent(call("execute", command=left.format("own")), asks())
    await Run(model, subagents=[child], backend=LocalShellBackend(root)).to_end()
    pids = {name: int((root / name).read_text()) for name in names(root)}
    living = {name for name, pid in pids.items() if is_running(pid)}
    for name in ("own1", "own2"):
        os.kill(pids[name], signal.SIGKILL)
    assert living == {"own1", "own2"}


async def test_two_that_change_the_same_file_by_commands_lose_nothing(root: Path) -> None:
    (root / "f").write_text("".join(f"line {n}\n" for n in range(20)))
    (root / "same").write_text("x\n")
    one = worker(
        shell("sed -i 's/line 1$/ONE/' f; sleep 0.3; echo one > same"), says("x"), name="one"
    )
    two = worker(
        shell("sed -i 's/line 18/TWO/' f; sleep 0.3; echo two > same"), says("x"), name="two"
    )
    run = await Run(
        parent(asks("x", "one"), asks("x", "two")),
        subagents=[one, two],
        backend=LocalShellBackend(root),
    ).to_end()
    text = (root / "f").read_text()
    assert "ONE\n" in text
    assert "TWO\n" in text
    conflicts = [one for record in run.results for one in record["merge"]["conflicts"]]
    assert [Path(one["path"]).name for one in conflicts] == ["same"]
    assert "Both sides changed the same lines" in conflicts[0]["reason"]


async def test_a_child_that_fails_leaves_no_change_of_a_command(root: Path, copies: Path) -> None:
    child = worker(shell("echo half > half"), {"raise": "lost"})
    run = await Run(parent(asks()), subagents=[child], backend=LocalShellBackend(root)).to_end()
    assert run.results[0]["success"] is False
    assert names(root) == []
    assert names(copies) == []


async def test_the_path_of_the_folder_is_that_of_the_copy_in_commands_and_back(root: Path) -> None:
    (root / "a").write_text("a\n")
    (root.parent / "project2").mkdir()
    (root.parent / "project2" / "other").write_text("untouched")
    child = worker(
        shell(f"echo b >> {root}/a && cat {root}/a && pwd && cat {root}2/other; pwd > where"),
        says("x"),
    )
    run = await Run(
        parent(asks(timeout_seconds=10)), subagents=[child], backend=LocalShellBackend(root)
    ).to_end()
    shown = seen(child["model"])
    assert f"a\\nb\\n{root}\\nuntouched" in shown
    assert "fanout-copy" not in shown
    assert (root / "where").read_text() == f"{root}\n"
    assert changes(run.results[0]) == {"a": "modified", "where": "added"}


async def test_what_ignore_rules_exclude_stays_out_and_is_named(root: Path) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(root)], check=True)
    (root / ".gitignore").write_text("build/\n")
    child = worker(
        shell(
            "mkdir build __pycache__; echo x > build/big; echo x > __pycache__/m.pyc; ln -s a l; "
            "echo x > src; git add src"
        ),
        says("x"),
    )
    run = await Run(parent(asks()), subagents=[child], backend=LocalShellBackend(root)).to_end()
    (record,) = run.results
    assert changes(record) == {"src": "added"}
    assert "build/big" in record["note"]
    assert "/l" in record["note"]
    assert names(root) == [".git", ".gitignore", "src"]


async def test_above_the_limit_they_work_directly_one_after_the_other(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_files, "MAX_COPIED_FILES", 1)
    (root / "n").write_text("0")
    (root / "other").write_text("0")
    add = "v=$(cat n); sleep 0.2; echo $((v + 1)) > n"
    team = [worker(shell(add), says("x"), name=name) for name in ("one", "two")]
    run = await Run(
        parent(asks("x", "one"), asks("x", "two")),
        subagents=team,
        backend=LocalShellBackend(root),
    ).to_end()
    assert (root / "n").read_text() == "2\n"
    for record in run.results:
        assert changes(record) == {"n": "modified"}
        assert record["note"] == "It worked directly on your files."


async def test_a_child_that_worked_directly_and_fails_says_what_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_files, "MAX_COPIED_FILES", 0)
    (root / "n").write_text("0")
    child = worker(shell("echo half > half"), {"raise": "lost"})
    run = await Run(parent(asks()), subagents=[child], backend=LocalShellBackend(root)).to_end()
    (record,) = run.results
    assert changes(record) == {"half": "added"}
    assert "still there" in record["note"]


async def test_a_question_keeps_what_commands_changed_before_it(root: Path, copies: Path) -> None:
    (root / "a").write_text("a")
    team = Guarded(root, "a")
    team.run = Run(
        parent(asks()),
        subagents=[
            worker(
                shell("echo made > made"),
                calls(call("delete_file", file_path=f"{root}/a")),
                shell("cat made >> made2; ls > listed"),
                says("cleaned"),
            )
        ],
        backend=LocalShellBackend(root),
        interrupt_on={"delete_file": True},
    )
    await team.run.to_end()
    assert names(root) == ["a"]
    assert names(copies) == []
    await team.answer({"decision": "approve"})
    assert names(root) == ["listed", "made", "made2"]
    assert (root / "listed").read_text() == "listed\nmade\nmade2\n"
    assert names(copies) == []


async def test_more_than_an_overlay_may_hold_is_refused_in_words(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "MAX_STAGED_BYTES", 1000)
    child = worker(shell("head -c 2000 /dev/zero | tr '\\0' x > big"), says("x"))
    run = await Run(parent(asks()), subagents=[child], backend=LocalShellBackend(root)).to_end()
    assert "would exceed" in run.results[0]["error"]
    assert "would exceed" in seen(child["model"])
    assert names(root) == []


async def test_a_sub_agent_without_execute_gets_no_copy(root: Path, copies: Path) -> None:
    child = worker(calls(call("ls", path="/")), says("x"), built_in_tools=["ls", "write_file"])
    await Run(parent(asks()), subagents=[child], backend=LocalShellBackend(root)).to_end()
    assert "execute" not in child["model"].requests[0].tools_dict
    assert names(copies) == []
