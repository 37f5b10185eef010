"""An ADK plugin that enforces the budgets of runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from fanout.orchestrator.deep_agent.guards.budget import Budget
from fanout.orchestrator.deep_agent.messages import text_of
from fanout.orchestrator.deep_agent.models.usage import reply_usage
from fanout.orchestrator.deep_agent.prompts import LAST_REPLY
from fanout.orchestrator.deep_agent.tool import error_result

PLUGIN = "budget"
"""The plugin's name in ADK."""

MAX_BUDGETS = 1_000
"""Budgets of runs in one process, active or waiting. The budget of an older run is read from its
session again, except its time."""

BudgetFactory = Callable[[Sequence[Event]], Budget]
"""Creates the budget of a run, given the events that its session already has of it."""


def budget_of(context: InvocationContext) -> Budget | None:
    """Return the budget of a run, for parts that make their own model calls, or None."""
    plugin = context.plugin_manager.get_plugin(PLUGIN)
    return plugin.budget(context) if isinstance(plugin, BudgetPlugin) else None


@contextlib.contextmanager
def shared_budget(parent: InvocationContext, session_id: str) -> Iterator[None]:
    """Charge runs in a session to the budget of their parent's run while the context is open."""
    plugin = parent.plugin_manager.get_plugin(PLUGIN)
    if not isinstance(plugin, BudgetPlugin):
        yield
        return
    plugin.parent_budgets[session_id] = plugin.budget(parent)
    try:
        yield
    finally:
        del plugin.parent_budgets[session_id]


class BudgetPlugin(BasePlugin):
    """Enforces the budgets of runs, each including the runs of its children.

    Args:
        budget: One budget for all runs of the app, or a factory of one for each run. A run is all
            that one message of a user starts, approvals included.
    """

    def __init__(self, budget: Budget | BudgetFactory) -> None:
        super().__init__(name=PLUGIN)
        self._budget = budget
        self._budgets: OrderedDict[str, Budget] = OrderedDict()
        self.parent_budgets: dict[str, Budget] = {}
        """The budgets of parents' runs, by their children's session ids."""
        self._last_reply_of: set[str] = set()
        self._alarms: dict[str, tuple[Budget, asyncio.TimerHandle]] = {}

    def budget(self, context: InvocationContext | ReadonlyContext) -> Budget:
        """Return the budget of a run, by any context of it."""
        if isinstance(self._budget, Budget):
            return self._budget
        if context.session.id in self.parent_budgets:
            return self.parent_budgets[context.session.id]
        run = context.invocation_id
        if run not in self._budgets:
            self._budgets[run] = self._budget(
                [event for event in context.session.events if event.invocation_id == run]
            )
        self._budgets.move_to_end(run)
        if len(self._budgets) > MAX_BUDGETS:
            self._budgets.popitem(last=False)
        return self._budgets[run]

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Start the clock, and abort the run when its time is over."""
        budget, run = self.budget(invocation_context), invocation_context.invocation_id
        left = budget.seconds_left
        budget.run_begins(run)
        if left is not None and left > 0:
            loop = asyncio.get_running_loop()
            alarm = loop.call_later(left, _abort_for_time, budget, invocation_context)
            self._alarms[run] = budget, alarm

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Stop the clock."""
        self._stop_clock(self.budget(invocation_context), invocation_context.invocation_id)

    async def on_run_error_callback(
        self, *, invocation_context: InvocationContext, error: Exception
    ) -> None:
        """Stop the clock."""
        del error
        self._stop_clock(self.budget(invocation_context), invocation_context.invocation_id)

    async def close(self) -> None:
        """Stop the clock of runs that were cancelled: ADK calls no other hook for them."""
        for run, (budget, _) in list(self._alarms.items()):
            self._stop_clock(budget, run)

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Allow the call, make it the last one, or reply in its place."""
        budget = self.budget(callback_context)
        await budget.refresh_shared_accounts()
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
        """Add what the reply used, and drop the tool calls of a last reply.

        A last reply that was cut is not continued.
        """
        if llm_response.partial:
            return None
        budget = self.budget(callback_context)
        budget.add_model_reply(llm_response.model_version or "", reply_usage(llm_response))
        is_cut = llm_response.finish_reason == types.FinishReason.MAX_TOKENS
        if callback_context.invocation_id in self._last_reply_of and (
            is_cut or llm_response.get_function_calls()
        ):
            return _without_calls(llm_response, budget)
        return None

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Reject a call if none is left."""
        del tool_args
        budget = self.budget(tool_context)
        is_unknown = type(tool) is BaseTool  # ADK's placeholder for an unknown name: nothing runs
        is_counted = tool_context.tool_confirmation is not None  # when it asked for an approval
        if is_unknown or is_counted or budget.take_tool_call():
            return None
        return error_result(
            f"Not done: the limit max_tool_calls={budget.limits.max_tool_calls} is reached. "
            "Sum up now."
        )

    def _stop_clock(self, budget: Budget, run: str) -> None:
        budget.run_ends(run)
        _, alarm = self._alarms.pop(run, (None, None))
        if alarm is not None:
            alarm.cancel()


def _abort_for_time(budget: Budget, invocation_context: InvocationContext) -> None:
    budget.expire()
    invocation_context.abort()


def _without_calls(response: LlmResponse, budget: Budget) -> LlmResponse:
    text = f"{text_of(response)}\n\n{budget.reached} The work ended here, before it was finished."
    return response.model_copy(update={"content": _content(text.strip())})


def _text_response(text: str) -> LlmResponse:
    return LlmResponse(content=_content(text), finish_reason=types.FinishReason.STOP)


def _content(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])
