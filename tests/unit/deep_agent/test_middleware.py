"""Middleware of one's own: its state, its order, and what ADK offers beside it."""

from __future__ import annotations

from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from fanout.orchestrator.deep_agent import (
    Middleware,
    StateSlot,
    create_deep_agent,
    create_deep_app,
)
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

LOOKS: list[dict[str, Any]] = [{"calls": [call("ls", path="/")]}]


class Counting(Middleware):
    """Counts calls of tools in its state, and notes the order of its hooks."""

    def __init__(self, seen: list[str], name: str = "counting") -> None:
        self.seen, self.name = seen, name
        self.count = StateSlot(name, int, default=int)

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        del callback_context, llm_request
        self.seen.append(f"{self.name} model")

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        del args
        self.seen.append(f"{self.name} {tool.name}")
        self.count.set(tool_context, self.count.get(tool_context) + 1)


class Plugin(BasePlugin):
    """A plugin of an application."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(name="theirs")
        self.seen = seen

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        del tool_args, tool_context
        self.seen.append(f"plugin {tool.name}")


async def test_state_is_kept_in_the_session_and_not_seen_by_sub_agents() -> None:
    seen: list[str] = []
    mine = Counting(seen)
    child = {
        "name": "worker",
        "description": "Works.",
        "model": scripted([*LOOKS * 3, {"text": "x"}], "worker"),
    }
    task = {"calls": [call("task", description="do", subagent_type="worker")]}
    run = Run(
        scripted([*LOOKS, task, {"text": "x"}, *LOOKS, {"text": "y"}]),
        middleware=[mine],
        subagents=[child],
    )
    await run.to_end()
    await run.go_on("again")

    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    assert session.state["middleware:counting"] == 3
    assert [each for each in seen if each != "counting model"] == [
        "counting ls",
        "counting task",
        "counting ls",
    ]


async def test_adks_plugins_and_callbacks_work_beside_it_in_a_known_order() -> None:
    seen: list[str] = []
    agent = create_deep_agent(
        scripted([*LOOKS, {"text": "x"}]),
        middleware=[Counting(seen, "one"), Counting(seen, "two")],
    )

    def own_callback(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        del args, tool_context
        seen.append(f"callback {tool.name}")

    agent = agent.clone(
        {"before_tool_callback": [*agent.canonical_before_tool_callbacks, own_callback]}
    )
    app = create_deep_app(agent, plugins=[Plugin(seen)])
    sessions = InMemorySessionService()
    await sessions.create_session(app_name="fanout", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for _ in Runner(app=app, session_service=sessions).run_async(
        user_id="u", session_id="s", new_message=message
    ):
        pass

    assert seen[:6] == ["one model", "two model", "plugin ls", "one ls", "two ls", "callback ls"]


class Counted(Middleware):
    """Writes below the last result of a reply how many it got."""

    async def after_tools(self, results: Event, tools: Any, state: Any) -> None:
        """Count the results, and remember how many there were before."""
        answers = results.get_function_responses()
        total = len(answers) + int(state.get("results") or 0)
        results.actions.state_delta["results"] = total
        answers[-1].response = {**(answers[-1].response or {}), "total": total}
        assert {answer.name for answer in answers} <= tools.keys()


async def test_a_middleware_sees_all_results_of_a_reply_together() -> None:
    look = call("ls", path="/")
    replies = [{"calls": [look, call("glob", pattern="*"), look]}, {"calls": [look]}]
    model = scripted([*replies, {"text": "done"}])
    run = await Run(model, middleware=[Counted()]).to_end()

    assert [result.get("total") for result in run.results] == [None, None, 3, 4]
