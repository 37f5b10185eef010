"""A model that repeats itself is warned, then stopped; one that works is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.deep_agent.guards.loop_guard import (
    MAX_REPEATED_CALLS,
    MAX_SAME_CALLS,
    REPEATED_CALL,
)
from fanout.orchestrator.deep_agent.tool import MethodTool, polling
from tests.unit.deep_agent.running import Run, call, scripted


class Tools:
    """Counts how often each tool was carried out."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def all(self) -> list[MethodTool]:
        return [MethodTool(self.look), MethodTool(self.edit), MethodTool(self.ask)]

    async def look(self, tool_context: ToolContext, at: str = "", deep: int = 0) -> dict[str, Any]:
        """Look."""
        del tool_context
        self.done.append("look")
        return {"status": "success", "at": at, "deep": deep}

    async def edit(self, line: int, tool_context: ToolContext) -> dict[str, Any]:
        """Edit."""
        del tool_context
        self.done.append("edit")
        return {"status": "success", "line": line}

    @polling
    async def ask(self, tool_context: ToolContext) -> dict[str, Any]:
        """Ask how it stands."""
        del tool_context
        self.done.append("ask")
        return {"status": "success"}


def refused(run: Run) -> list[bool]:
    return ["times in a row" in str(result.get("error")) for result in run.results]


async def test_the_same_call_is_carried_out_four_times_then_answered_with_a_warning() -> None:
    tools = Tools()
    replies = [{"calls": [call("look", at="x", deep=1)]}] * (MAX_SAME_CALLS + 1)
    run = await Run(scripted([*replies, {"text": "done"}]), tools=tools.all()).to_end()

    assert tools.done == ["look"] * MAX_SAME_CALLS
    assert refused(run) == [False] * MAX_SAME_CALLS + [True]
    assert "the same call of look" in run.results[-1]["error"]
    assert run.text == "done"


async def test_a_model_that_no_warning_moves_is_stopped_with_an_error_that_says_so() -> None:
    run = await Run(scripted([{"calls": [call("look")]}] * 99), tools=Tools().all()).to_end()

    last = run.events[-1]
    assert last.error_code == REPEATED_CALL
    assert f"look with the same arguments {MAX_REPEATED_CALLS} times in a row" in str(
        last.error_message
    )
    assert len(run.results) == MAX_REPEATED_CALLS


async def test_the_order_of_arguments_does_not_matter() -> None:
    orders = [{"at": "x", "deep": 1}, {"deep": 1, "at": "x"}]
    replies = [
        {"calls": [{"tool": "look", "args": orders[turn % 2]}]}
        for turn in range(MAX_SAME_CALLS + 1)
    ]
    run = await Run(scripted([*replies, {"text": "done"}]), tools=Tools().all()).to_end()

    assert refused(run)[-1]


async def test_identical_calls_of_one_reply_count_each() -> None:
    tools = Tools()
    replies = [{"calls": [call("look")] * 6}, {"text": "done"}]
    run = await Run(scripted(replies), tools=tools.all()).to_end()

    assert tools.done == ["look"] * MAX_SAME_CALLS
    assert refused(run) == [False] * MAX_SAME_CALLS + [True] * 2
    assert run.text == "done"


async def test_a_reply_of_several_calls_that_is_repeated_whole_is_a_loop_too() -> None:
    replies = [{"calls": [call("look"), call("edit", line=1)]}] * (MAX_SAME_CALLS + 1)
    run = await Run(scripted([*replies, {"text": "done"}]), tools=Tools().all()).to_end()

    assert refused(run) == [False] * 2 * MAX_SAME_CALLS + [True, True]


async def test_the_same_call_between_other_calls_is_work() -> None:
    tools = Tools()
    in_turn = [[call("look")] if turn % 2 else [call("edit", line=turn)] for turn in range(20)]
    beside = [[call("look"), call("edit", line=100 + turn)] for turn in range(10)]
    replies = [{"calls": calls} for calls in in_turn + beside]
    run = await Run(scripted([*replies, {"text": "done"}]), tools=tools.all()).to_end()

    assert not any(refused(run))
    assert tools.done.count("look") == 20
    assert run.text == "done"


async def test_tools_for_polling_are_free() -> None:
    tools = Tools()
    replies = [{"calls": [call("ask")]}] * (MAX_REPEATED_CALLS + 5)
    run = await Run(scripted([*replies, {"text": "done"}]), tools=tools.all()).to_end()

    assert len(tools.done) == MAX_REPEATED_CALLS + 5
    assert run.text == "done"


async def test_unknown_tools_and_refused_arguments_are_repetitions_too() -> None:
    run = await Run(scripted([{"calls": [call("nosuch", a=1)]}] * 99), tools=Tools().all()).to_end()
    assert run.events[-1].error_code == REPEATED_CALL
    run = await Run(scripted([{"calls": [call("edit")]}] * 99), tools=Tools().all()).to_end()
    assert run.events[-1].error_code == REPEATED_CALL


@pytest.mark.parametrize("word", ["again", "once more"])
async def test_a_new_message_of_the_user_begins_a_new_row(word: str) -> None:
    tools = Tools()
    replies = [{"calls": [call("look")]}] * 3 + [{"text": "first"}]
    run = await Run(scripted(replies * 2), tools=tools.all()).to_end()
    await run.go_on(word)

    assert not any(refused(run))
    assert len(tools.done) == 6
