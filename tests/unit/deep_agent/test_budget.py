"""The account of a run.

Time, side calls, calls that are approved, and what is read from a session again.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from fanout.orchestrator.deep_agent import budget as budget_module
from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits, budget_of, usage_of
from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.models.tokens import ModelUsage
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

LONG = 3600.0


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(budget_module, "time", SimpleNamespace(monotonic=lambda: self.now))


async def wait() -> dict[str, Any]:
    """Take very long."""
    await asyncio.sleep(LONG)
    return {}


async def test_what_still_runs_when_the_time_is_over_is_cancelled_and_the_calls_are_sealed() -> (
    None
):
    budget = Budget(BudgetLimits(max_seconds=3))
    model = scripted([{"text": "begun", "calls": [call("wait"), call("wait")]}, {"text": "never"}])
    run = await Run(model, budget=budget, tools=[wait]).to_end()

    assert str(budget.reached).startswith("The limit max_seconds=3 is reached")
    assert budget.usage.model_calls == 1
    assert ["aborted" in result["error"] for result in run.results] == [True, True]


async def test_a_model_that_does_not_answer_in_time_is_not_waited_for() -> None:
    budget = Budget(BudgetLimits(max_seconds=0.5))
    await Run(scripted([{"text": "never", "delay_seconds": LONG}]), budget=budget).to_end()

    assert str(budget.reached).startswith("The limit max_seconds=0.5 is reached")


async def test_without_time_left_no_model_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    budget = Budget(BudgetLimits(max_seconds=10))
    budget.run_begins("earlier")
    clock.now += 11
    budget.run_ends("earlier")
    run = await Run(scripted([{"text": "never"}]), budget=budget).to_end()

    assert "max_seconds=10" in run.text
    assert budget.usage.model_calls == 0


def test_the_last_turn_that_fits_has_to_sum_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    budget = Budget(BudgetLimits(max_seconds=10))
    budget.run_begins("a")
    rooms = []
    for seconds in (0, 4, 3, 2):
        clock.now += seconds
        rooms.append(budget.start_model_call())

    assert rooms == ["go", "go", "last", "last"]
    assert budget.reached == "The limit max_seconds=10 is reached (9 used)."
    clock.now += 2
    assert budget.start_model_call() == "stop"


def test_the_time_between_runs_does_not_count_and_runs_beside_each_other_count_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    budget = Budget(BudgetLimits(max_seconds=10))
    budget.run_begins("parent")
    clock.now += 2
    budget.run_begins("child")
    clock.now += 1
    budget.run_ends("child")
    budget.run_ends("parent")
    clock.now += 500
    assert budget.seconds == 3
    budget.run_begins("parent")
    clock.now += 1
    assert budget.seconds_left == 6
    assert Budget().seconds_left is None


def test_a_call_beside_the_turns_is_booked_and_does_not_foretell_the_next_turn() -> None:
    budget = Budget(BudgetLimits(max_tokens=1000), price=lambda _, used: used.tokens / 1000)
    budget.start_model_call()
    budget.add_model_reply("m", ModelUsage(input_tokens=90, output_tokens=10))
    budget.add_side_call("m", ModelUsage(input_tokens=490, output_tokens=10))

    assert budget.usage == ModelUsage(
        model_calls=2, input_tokens=580, output_tokens=20, cost_usd=0.6
    )
    assert budget.start_model_call() == "go"


class Asks(Middleware):
    """Finds the account of its run."""

    def __init__(self) -> None:
        self.found: list[Budget | None] = []

    async def before_model(self, callback_context: Any, llm_request: Any) -> None:
        del llm_request
        self.found.append(budget_of(callback_context.get_invocation_context()))


@pytest.mark.parametrize("budget", [Budget(), None], ids=["with one", "without"])
async def test_a_part_finds_the_account_of_its_run(budget: Budget | None) -> None:
    asks = Asks()
    agent = create_deep_agent(scripted([{"text": "done"}]))
    agent.before_model_callback = [asks.before_model]
    run = Run(scripted([{"text": "unused"}]))
    run.app = create_deep_app(agent, budget=budget)
    await run.to_end()

    assert asks.found == [budget]


async def deploy() -> dict[str, Any]:
    """Deploy."""
    return {"status": "success"}


async def in_session(
    replies: list[dict[str, Any]], tools: list[Any], budget: Budget
) -> list[Event]:
    """The events of a run in which every approval is given."""
    app = create_deep_app(create_deep_agent(scripted(replies), tools), budget=budget)
    sessions = InMemorySessionService()
    await sessions.create_session(app_name="fanout", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    while message.parts:
        runner = Runner(app=app, session_service=sessions)
        events = [
            event
            async for event in runner.run_async(user_id="u", session_id="s", new_message=message)
        ]
        message = _approvals(events)
    session = await sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    return session.events


def _approvals(events: list[Event]) -> types.Content:
    asked = [
        made
        for event in events
        for made in event.get_function_calls()
        if "confirm" in str(made.name)
    ]
    answers = [
        types.FunctionResponse(id=made.id, name=made.name, response={"confirmed": True})
        for made in asked
    ]
    return types.Content(
        role="user", parts=[types.Part(function_response=answer) for answer in answers]
    )


async def test_a_call_counts_once_also_when_it_waits_for_an_approval_and_when_it_is_read_again() -> (
    None
):
    def price(model: str, used: ModelUsage) -> float:
        return used.tokens * 0.001

    budget = Budget(BudgetLimits(max_tool_calls=4), price=price)
    usage = {"input_tokens": 100, "output_tokens": 10, "cached_tokens": 40}
    replies = [
        {"calls": [call("deploy"), call("read_todos")], "usage": usage},
        {"text": "", "usage": usage},
        {"malformed": True, "usage": usage},
        {"calls": [call("deploy")], "usage": usage},
        {"text": "done", "usage": usage},
    ]
    events = await in_session(replies, [FunctionTool(deploy, require_confirmation=True)], budget)

    assert budget.reached is None
    assert budget.usage.tool_calls == 3
    assert budget.usage.cost_usd == pytest.approx(0.55)
    read = usage_of(events, price)
    assert read.cost_usd == pytest.approx(0.55)
    assert (read.model_calls, read.input_tokens, read.output_tokens, read.cached_tokens) == (
        5,
        500,
        50,
        200,
    )
    assert usage_of(events).cost_usd is None


async def test_what_was_sent_back_to_the_model_is_no_tool_call() -> None:
    budget = Budget()
    events = await in_session([{"text": ""}, {"text": "done"}], [], budget)

    assert (budget.usage.tool_calls, usage_of(events).tool_calls) == (0, 0)
