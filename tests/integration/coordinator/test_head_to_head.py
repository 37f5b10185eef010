"""Three sub-agents change one file at the same time: in one process, and as jobs on a worker.

Two systems of this kind keep one of the three edits and say nothing (the notes on peers). Here all
three arrive, and where they overlap the conflict is reported and nothing is overwritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import KEY_PREFIX
from tests.integration.coordinator.driving import Coordination, task
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import recorder

LINES = [f"line {number}\n" for number in range(1, 10)]
SHARED = "/workspace/shared.txt"


def editor(name: str, old: str, new: str) -> dict[str, Any]:
    """A sub-agent that edits at once and answers when all others have edited too.

    `meet` is given later.
    """
    edit = call("edit_file", file_path=SHARED, old_string=old, new_string=new)
    replies = [calls(edit), calls(call("meet")), says(f"{name} is done")]
    return {"name": name, "description": "Edits.", "model": recorder(name, replies)}


class Here:
    """A parent and its team in this process, on one kind of backend."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    async def run(
        self, *team: dict[str, Any], besides: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        create = call("write_file", file_path=SHARED, content="".join(LINES))
        delegate = [call("task", description="edit", subagent_type=child["name"]) for child in team]
        model = recorder(
            "parent",
            [calls(create), calls(*delegate, *([besides] if besides else [])), says("done")],
        )
        meeting = asyncio.Barrier(len(team))

        async def meet() -> str:
            """Wait for the others."""
            await meeting.wait()
            return "all are here"

        backend: Backend | None = DirectoryBackend(self._folder) if self._folder else None
        tools = {"tools": [meet], "built_in_tools": ["edit_file"]}
        self.made = Run(model, subagents=[{**child, **tools} for child in team], backend=backend)
        await self.made.to_end()
        return self.made.results[1:]

    async def text(self) -> str:
        if self._folder:
            return (self._folder / "shared.txt").read_text()
        session = await self.made.sessions.get_session(
            app_name="fanout", user_id="u", session_id="s"
        )
        assert session
        return str(session.state[KEY_PREFIX + SHARED]["content"])


@pytest.fixture(params=["state", "directory"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Here:
    return Here(tmp_path if request.param == "directory" else None)


def with_lines(changes: dict[int, str]) -> str:
    return "".join(changes.get(number, line) for number, line in enumerate(LINES, start=1))


async def test_edits_of_different_lines_all_arrive(here: Here) -> None:
    results = await here.run(
        editor("a", "line 1\n", "A\n"),
        editor("b", "line 2\n", "B\n"),
        editor("c", "line 8\n", "C\n"),
    )
    assert [result["merge"] for result in results] == [{"applied": 1, "conflicts": []}] * 3
    assert await here.text() == with_lines({1: "A\n", 2: "B\n", 8: "C\n"})


async def test_edits_of_the_same_line_are_a_conflict_that_shows_what_was_not_put_in(
    here: Here,
) -> None:
    results = await here.run(
        editor("a", "line 1\n", "A\n"),
        editor("b", "line 1\n", "B\n"),
        editor("c", "line 8\n", "C\n"),
    )
    assert [result["status"] for result in results] == ["success"] * 3
    conflicts = [conflict for result in results for conflict in result["merge"]["conflicts"]]
    (conflict,) = conflicts
    assert conflict["path"] == SHARED
    assert "same lines" in conflict["reason"]
    text = await here.text()
    winner, loser = ("A", "B") if text.startswith("A\n") else ("B", "A")
    assert text == with_lines({1: f"{winner}\n", 8: "C\n"})
    assert f"+{loser}\n" in conflict["diff"]


async def test_the_parents_own_edit_in_the_same_reply_is_not_lost(here: Here) -> None:
    own = call("edit_file", file_path=SHARED, old_string="line 9\n", new_string="P\n")
    a, b, mine = await here.run(
        editor("a", "line 1\n", "A\n"), editor("b", "line 5\n", "B\n"), besides=own
    )
    # A child that reads the file at the moment of the parent's edit is refused its own.
    arrived = {1: "A\n"} if a["merge"]["applied"] else {}
    arrived |= {5: "B\n"} if b["merge"]["applied"] else {}
    assert mine["status"] == "success"
    assert await here.text() == with_lines({**arrived, 9: "P\n"})


def sed(number: int, new: str) -> dict[str, Any]:
    return task(f"run: sed -i 's/^line {number}$/{new}/' shared.txt; sleep 1")


@pytest.mark.redis
@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (
            [(1, "A"), (2, "B"), (8, "C")],
            lambda text: text == with_lines({1: "A\n", 2: "B\n", 8: "C\n"}),
        ),
        (
            [(1, "A"), (1, "B"), (8, "C")],
            lambda text: text in {with_lines({1: f"{one}\n", 8: "C\n"}) for one in "AB"},
        ),
    ],
)
async def test_jobs_on_a_worker_do_the_same(
    coordination: Coordination, edits: list[tuple[int, str]], expected: Callable[[str], bool]
) -> None:
    shared = coordination.workspace / "shared.txt"
    shared.write_text("".join(LINES))
    run = await coordination.run(calls(*(sed(number, new) for number, new in edits)))
    assert [result["status"] for result in run.results] == ["success"] * 3
    assert expected(shared.read_text())
    reported = [conflict for result in run.results for conflict in result["merge"]["conflicts"]]
    overlapping = len({number for number, _ in edits}) < len(edits)
    assert [conflict["path"] for conflict in reported] == (["shared.txt"] if overlapping else [])
