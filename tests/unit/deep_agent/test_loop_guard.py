"""A model that repeats itself is warned, then stopped; one that works is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.deep_agent.loop_guard import (
    MAX_CHANGING_CALLS,
    MAX_REPEATED_CALLS,
    MAX_SAME_CALLS,
    REPEATED_CALL,
    LoopLimits,
    LoopPolicy,
)
from fanout.orchestrator.deep_agent.tool import MethodTool, polling
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted


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
    return ["in a row of" in str(result.get("error")) for result in run.results]


async def test_the_same_call_is_carried_out_four_times_then_answered_with_a_warning() -> None:
    tools = Tools()
    replies = [{"calls": [call("look", at="x", deep=1)]}] * (MAX_SAME_CALLS + 1)
    run = await Run(scripted([*replies, {"text": "done"}]), tools=tools.all()).to_end()

    assert tools.done == ["look"] * MAX_SAME_CALLS
    assert refused(run) == [False] * MAX_SAME_CALLS + [True]
    warning = run.results[-1]["error"]
    assert (
        'call 5 in a row of look with the same arguments, {"at": "x", "deep": 1}, since' in warning
    )
    assert "UTC. Its answer was the same each time" in warning
    assert "After 3 more" in warning
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


class Changing:
    """A tool whose answer changes with each call, up to a last one."""

    def __init__(self, last: int) -> None:
        self.calls, self._last = 0, last

    async def status(self, tool_context: ToolContext) -> dict[str, Any]:
        """Say how far it is."""
        del tool_context
        self.calls += 1
        return {"percent": min(self.calls, self._last)}


async def run_of(calls: int, tool: str = "status", **agent: Any) -> Run:
    replies: list[dict[str, Any]] = [{"calls": [call(tool)]}] * calls
    return await Run(scripted([*replies, {"text": "done"}]), **agent).to_end()


async def test_a_result_that_changes_is_progress_and_starts_the_row_again() -> None:
    made = Changing(last=20)
    run = await run_of(23, tools=[MethodTool(made.status)])
    assert not any(refused(run))
    assert run.text == "done"

    run = await run_of(25, tools=[MethodTool(Changing(last=20).status)])
    assert refused(run) == [False] * 23 + [True] * 2
    assert "Its answers differed" in run.results[-1]["error"]


async def test_changing_results_have_an_end_too() -> None:
    made = Changing(last=10_000)
    run = await run_of(99, tools=[MethodTool(made.status)])
    assert made.calls == MAX_CHANGING_CALLS
    assert run.events[-1].error_code == REPEATED_CALL


async def test_the_numbers_and_the_exceptions_can_be_set() -> None:
    tools = Tools()
    policy = LoopPolicy(max_same=1, stop_after=3, per_tool={"edit": LoopLimits(max_same=2)})
    run = await run_of(9, "look", tools=tools.all(), loops=policy)
    assert refused(run) == [False, True, True]
    assert run.events[-1].error_code == REPEATED_CALL

    replies: list[dict[str, Any]] = [{"calls": [call("edit", line=1)]}] * 3
    run = await Run(
        scripted([*replies, {"text": "done"}]), tools=tools.all(), loops=policy
    ).to_end()
    assert refused(run) == [False, False, True]

    run = await run_of(30, "look", tools=tools.all(), loops=LoopPolicy(exempt=("loo*",)))
    assert not any(refused(run))


@pytest.mark.parametrize("name", ["browser_snapshot", "browser__take_screenshot"])
def test_snapshots_are_exempt_and_commands_have_more_room(name: str) -> None:
    policy = LoopPolicy()
    assert policy.limits(name) is None
    commands = policy.limits("execute")
    assert commands is not None
    assert commands.max_same > policy.max_same


def test_a_tool_that_says_that_it_only_looks_may_poll_but_not_for_ever() -> None:
    class OnlyLooks(MethodTool):
        only_looks = True

    limits = LoopPolicy().limits("server__list", OnlyLooks(Tools().look))
    assert limits is not None
    assert not limits.refuses(MAX_CHANGING_CALLS, MAX_CHANGING_CALLS)
    assert limits.refuses(MAX_CHANGING_CALLS + 1, MAX_CHANGING_CALLS + 1)


def test_a_policy_without_a_warning_is_refused() -> None:
    with pytest.raises(ValueError, match="stop_after must be above max_same"):
        LoopPolicy(max_same=5, stop_after=5)


async def test_children_have_their_parents_policy() -> None:
    child = {
        "name": "worker",
        "description": "Works.",
        "model": scripted([{"calls": [call("read_todos")]}] * 9 + [{"text": "x"}]),
    }
    asks = call("task", description="do", subagent_type="worker")
    run = await Run(
        scripted([{"calls": [asks]}, {"text": "done"}]),
        subagents=[child],
        loops=LoopPolicy(max_same=1, stop_after=2),
    ).to_end()
    assert "2 times in a row" in run.results[0]["error"]


async def test_a_model_that_only_calls_a_tool_that_does_not_exist_is_stopped_and_that_is_said() -> (
    None
):
    run = await Run(scripted([{"calls": [call("run_shell")]}] * 99), tools=Tools().all()).to_end()

    assert run.events[-1].error_message == (
        f"The agent called run_shell {MAX_REPEATED_CALLS} times in a row; no such tool exists."
    )
