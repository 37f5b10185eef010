"""Keeps ADK's runs within their budgets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.deep_agent.guards.budget import Budget
from orchestrator.deep_agent.messages import text_of
from orchestrator.deep_agent.models.usage import reply_usage
from orchestrator.deep_agent.prompts import LAST_REPLY
from orchestrator.deep_agent.tool import error_result

PLUGIN = "budget"
"""The name by which ADK knows the plugin."""

MAX_ACCOUNTS = 1_000
"""Of runs under way or waiting for somebody, in one process. Of an older one the account is read
from its session again, all but its time."""

BudgetMaker = Callable[[Sequence[Event]], Budget]
"""Opens the account of a run, given what its session holds of it already."""


def budget_of(context: InvocationContext) -> Budget | None:
    """The account of a run, for parts that cause costs of their own."""
    plugin = context.plugin_manager.get_plugin(PLUGIN)
    return plugin.account(context) if isinstance(plugin, BudgetPlugin) else None


@contextlib.contextmanager
def shared_budget(parent: InvocationContext, session_id: str) -> Iterator[None]:
    """While it lasts, what runs in that session has the account of its parent's run."""
    plugin = parent.plugin_manager.get_plugin(PLUGIN)
    if not isinstance(plugin, BudgetPlugin):
        yield
        return
    plugin.lent[session_id] = plugin.account(parent)
    try:
        yield
    finally:
        del plugin.lent[session_id]


class BudgetPlugin(BasePlugin):
    """Keeps runs within their budgets, each with the runs of its children.

    Args:
        budget: One account for all runs of the app, or what opens one for each: for all that one
            message of a user starts, approvals included.
    """

    def __init__(self, budget: Budget | BudgetMaker) -> None:
        super().__init__(name=PLUGIN)
        self._budget = budget
        self._accounts: OrderedDict[str, Budget] = OrderedDict()
        self.lent: dict[str, Budget] = {}
        """Accounts of parents' runs, by their children's sessions."""
        self._last_reply_of: set[str] = set()
        self._alarms: dict[str, tuple[Budget, asyncio.TimerHandle]] = {}

    def account(self, context: InvocationContext) -> Budget:
        """The account of a run."""
        if isinstance(self._budget, Budget):
            return self._budget
        if context.session.id in self.lent:
            return self.lent[context.session.id]
        run = context.invocation_id
        if run not in self._accounts:
            self._accounts[run] = self._budget(
                [event for event in context.session.events if event.invocation_id == run]
            )
        self._accounts.move_to_end(run)
        if len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return self._accounts[run]

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Start the clock; when the time is over the run is aborted."""
        budget, run = self.account(invocation_context), invocation_context.invocation_id
        left = budget.seconds_left
        budget.run_begins(run)
        if left is not None and left > 0:
            loop = asyncio.get_running_loop()
            alarm = loop.call_later(left, _time_is_over, budget, invocation_context)
            self._alarms[run] = budget, alarm

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Stop the clock."""
        self._run_is_over(self.account(invocation_context), invocation_context.invocation_id)

    async def on_run_error_callback(
        self, *, invocation_context: InvocationContext, error: Exception
    ) -> None:
        """Stop the clock."""
        del error
        self._run_is_over(self.account(invocation_context), invocation_context.invocation_id)

    async def close(self) -> None:
        """Stop the clock of runs that were cancelled: nothing else tells of their end."""
        for run, (budget, _) in list(self._alarms.items()):
            self._run_is_over(budget, run)

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Let the call go, ask it to sum up, or answer in its place."""
        budget = self.account(callback_context.get_invocation_context())
        await budget.look_around()
        room = budget.start_model_call()
        if room == "stop":
            return _text_response(f"{budget.reached} The work ended here, before it was finished.")
        if room == "last":
            llm_request.append_instructions([LAST_REPLY])
            self._last_reply_of.add(callback_context.invocation_id)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Book what the reply cost; a reply that had to be the last loses its calls."""
        if llm_response.partial:
            return None
        budget = self.account(callback_context.get_invocation_context())
        budget.add_model_reply(llm_response.model_version or "", reply_usage(llm_response))
        if (
            callback_context.invocation_id in self._last_reply_of
            and llm_response.get_function_calls()
        ):
            return _without_calls(llm_response, budget)
        return None

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Refuse a call when none is left."""
        del tool_args
        budget = self.account(tool_context.get_invocation_context())
        is_unknown = (
            type(tool) is BaseTool
        )  # ADK's stand-in for a name that no tool has: nothing will run
        is_counted = tool_context.tool_confirmation is not None  # it asked for an approval before
        if is_unknown or is_counted or budget.take_tool_call():
            return None
        return error_result(
            f"Not done: the limit max_tool_calls={budget.limits.max_tool_calls} is reached. Sum up now."
        )

    def _run_is_over(self, budget: Budget, run: str) -> None:
        budget.run_ends(run)
        _, alarm = self._alarms.pop(run, (None, None))
        if alarm is not None:
            alarm.cancel()


def _time_is_over(budget: Budget, invocation_context: InvocationContext) -> None:
    budget.end_for_time()
    invocation_context.abort()


def _without_calls(response: LlmResponse, budget: Budget) -> LlmResponse:
    text = f"{text_of(response)}\n\n{budget.reached} The work ended here, before it was finished."
    return response.model_copy(update={"content": _content(text.strip())})


def _text_response(text: str) -> LlmResponse:
    return LlmResponse(content=_content(text), finish_reason=types.FinishReason.STOP)


def _content(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])
