"""The budget of a run: model calls, tokens, tool calls, money, time.

The run ends in an orderly way: before the last reply that fits, the model is asked to sum up, and
tool calls in that reply are dropped; if not even that fits, no model is called. Tokens and money
are known only after a call, so a run's own limit may be exceeded by as much as a call is larger
than the one before it; of limits that runs share, calls can reserve
(`models/reserved_requests.py`). When the time is over the run is cancelled and its open calls are
answered.

An ADK plugin enforces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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

from .dangling_calls import is_frameworks
from .failures import BudgetUsedUp
from .messages import is_reply, text_of
from .models.tokens import ModelUsage, reply_usage, side_calls, summary_calls
from .prompts import LAST_REPLY
from .tool import error_result
from .unusable_replies import PLACEHOLDERS

PLUGIN = "budget"
"""The plugin's name in ADK."""

LIMIT_REACHED = "limit_reached"
"""Key of a reply's metadata: the sentence about the limit at which the work ended with it."""

MAX_BUDGETS = 1_000
"""Budgets of runs in one process, active or waiting. The budget of an older run is read from its
session again, except its time."""


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """The most that a run may use; None for no limit."""

    max_model_calls: int | None = None
    max_tokens: int | None = None
    """Input and output tokens together."""
    max_tool_calls: int | None = None
    max_cost_usd: float | None = None
    max_seconds: float | None = None
    """Wall-clock time of runs; the time between two runs, such as a person's, does not count."""


@dataclass(frozen=True)
class Account:
    """Limits that several runs share, of model calls, tokens and money, and what they have used."""

    limits: BudgetLimits
    used: ModelUsage
    scope: str = ""
    """Part of the limits' names: with `tree_`, `max_tokens` is reported as `max_tree_tokens`."""
    whose: str = ""
    """Whose limits they are: text that follows their value in messages."""
    least_call: ModelUsage = field(default_factory=ModelUsage)
    """The least that the next call reserves; a smaller rest of a limit is no room for it."""

    def no_room(self, *, is_money: bool, used: float, needed: float) -> str:
        """Return a sentence about the limit that has no room for a call.

        Args:
            is_money: Whether it is that of money; else it is that of tokens.
            used: What is used of it, in US dollars or tokens.
            needed: What the call has to reserve.
        """
        name = "cost_usd" if is_money else "tokens"
        most = self.limits.max_cost_usd if is_money else self.limits.max_tokens
        return _limit_reached(f"max_{self.scope}{name}", most or 0, used, self.whose, needed)


Accounts = Callable[[ModelUsage], Awaitable[Sequence[Account]]]
"""Reads the current accounts that a run shares with others; it is given what the run itself has
used."""

Price = Callable[[str, ModelUsage], float | None]
"""Returns what a model call cost in US dollars; None if its price is unknown."""


class Budget:
    """What one run may use and has used.

    Args:
        limits: No limits when None.
        used: What earlier attempts of the run used.
        price: Computes the cost of a call; without it no cost is known.
        shared: Reads the accounts that the run shares with others.
    """

    def __init__(
        self,
        limits: BudgetLimits | None = None,
        *,
        used: ModelUsage | None = None,
        price: Price | None = None,
        shared: Accounts | None = None,
    ) -> None:
        self.limits = limits or BudgetLimits()
        self.usage = used or ModelUsage()
        """What has been used so far."""
        self.reached: str | None = None
        """A sentence about the limit that ended the run or made it sum up; None until then."""
        self._price = price
        self._shared = shared
        self._accounts: Sequence[Account] = ()
        self._last_call = ModelUsage()
        self._runs: set[str] = set()
        self._seconds_before = 0.0
        self._running_since = 0.0
        self._turn_began: float | None = None

    @property
    def seconds(self) -> float:
        """The run's time so far."""
        return self._seconds_before + (time.monotonic() - self._running_since if self._runs else 0)

    @property
    def seconds_left(self) -> float | None:
        """The time left; None without a limit."""
        return None if self.limits.max_seconds is None else self.limits.max_seconds - self.seconds

    def run_begins(self, run: str) -> None:
        """Start the clock for a run; it stops when every run has ended."""
        if not self._runs:
            self._running_since = time.monotonic()
        self._runs.add(run)

    def run_ends(self, run: str) -> None:
        """Stop the clock for a run that has ended or is waiting."""
        before = self.seconds
        self._runs.discard(run)
        if not self._runs:
            self._seconds_before, self._turn_began = before, None

    def expire(self) -> None:
        """Record that the time limit is reached."""
        self.reached = _limit_reached("max_seconds", self.limits.max_seconds or 0, self.seconds)

    async def refresh_shared_accounts(self) -> None:
        """Read the shared accounts; to be called before each model call."""
        if self._shared is not None:
            self._accounts = await self._shared(self.usage)

    def start_model_call(self) -> str:
        """Count a model call if the limits allow it.

        Returns `go`, `last` (allowed, but the reply has to sum up) or `stop` (not allowed).
        """
        reason, room = self._strictest_limit()
        if reason is not None:
            self.reached = reason
        if room == "stop":
            return room
        self.usage = replace(self.usage, model_calls=self.usage.model_calls + 1)
        return room

    def refuse_model_call(self, reason: str) -> None:
        """Take a counted model call back: a shared account has no room for it."""
        self.reached = reason
        self.usage = replace(self.usage, model_calls=self.usage.model_calls - 1)

    def add_model_reply(self, model: str, used: ModelUsage) -> None:
        """Add what a reply used."""
        if self._price is not None:
            used = replace(used, cost_usd=self._price(model, used))
        self._last_call = used
        self.usage = self.usage.plus(used)

    def add_side_call(self, model: str, used: ModelUsage) -> None:
        """Add a model call that is not one of the run's turns, such as a summary."""
        last = self._last_call
        self.usage = replace(self.usage, model_calls=self.usage.model_calls + 1)
        self.add_model_reply(model, used)
        self._last_call = last  # the next turn is expected to be like the last turn

    @property
    def has_room_for_side_call(self) -> bool:
        """Whether a side call leaves enough for the next turn."""
        began = self._turn_began
        _, room = self._strictest_limit()
        self._turn_began = began  # this check is not a turn
        return room == "go"

    def take_tool_call(self) -> bool:
        """Count one tool call; return False if none is left."""
        most = self.limits.max_tool_calls
        if most is not None and self.usage.tool_calls >= most:
            return False
        self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + 1)
        return True

    def _strictest_limit(self) -> tuple[str | None, str]:
        accounts = [Account(self.limits, self.usage), *self._accounts]
        rooms = [room for account in accounts for room in _rooms(account, self._last_call)]
        most = self.limits.max_tool_calls
        if most is not None and self.usage.tool_calls >= most:
            rooms.append((_limit_reached("max_tool_calls", most, self.usage.tool_calls), "last"))
        rooms.append(self._time_room())
        for wanted in ("stop", "last"):
            for reason, room in rooms:
                if room == wanted:
                    return reason, room
        return None, "go"

    def _time_room(self) -> tuple[str | None, str]:
        """Return whether the time allows another turn as long as the last one.

        A longer turn is cancelled when the time is over.
        """
        now, most = self.seconds, self.limits.max_seconds
        turn = 0.0 if self._turn_began is None else now - self._turn_began
        self._turn_began = now
        if most is None or now + turn < most:
            return None, "go"
        return _limit_reached("max_seconds", most, now), "stop" if now >= most else "last"


def exceeded(accounts: Iterable[Account]) -> str | None:
    """Return a sentence about the first limit of which more is used than it allows.

    None if there is none.
    """
    for account in accounts:
        limits, used = account.limits, account.used
        for name, most, spent in (
            ("model_calls", limits.max_model_calls, used.model_calls),
            ("tokens", limits.max_tokens, used.tokens),
            ("cost_usd", limits.max_cost_usd, used.cost_usd or 0),
            ("tool_calls", limits.max_tool_calls, used.tool_calls),
        ):
            if most is not None and spent > most:
                return _limit_reached(f"max_{account.scope}{name}", most, spent, account.whose)
    return None


def _rooms(account: Account, last: ModelUsage) -> list[tuple[str | None, str]]:
    """Return whether an account has room for the next call, for each of its limits."""
    limits, used, least = account.limits, account.used, account.least_call
    next_tokens = max(last.tokens, least.tokens)
    next_cost = max(last.cost_usd or 0, least.cost_usd or 0)
    measures = (
        ("model_calls", limits.max_model_calls, used.model_calls, 1),
        ("tokens", limits.max_tokens, used.tokens, next_tokens),
        ("cost_usd", limits.max_cost_usd, used.cost_usd or 0, next_cost),
    )
    return [
        _room(f"max_{account.scope}{name}", most, spent, next_call, account.whose)
        for name, most, spent, next_call in measures
    ]


def _room(
    name: str, most: float | None, used: float, next_call: float, whose: str = ""
) -> tuple[str | None, str]:
    """Return whether there is room for two more calls like the last one, for one, or none."""
    if most is None or (used < most and used + 2 * next_call <= most):
        return None, "go"
    room = "last" if used < most and used + next_call <= most else "stop"
    return _limit_reached(name, most, used, whose), room


def _limit_reached(
    name: str, most: float, used: float, whose: str = "", needed: float | None = None
) -> str:
    need = "" if needed is None else f", and a model call may need {needed:.6g}"
    return f"{_limit_prefix(name)}={most:g}{whose} is reached ({used:.6g} used{need})."


def _limit_prefix(name: str) -> str:
    return f"The limit {name}"


def usage_of(events: Iterable[Event], price: Price | None = None) -> ModelUsage:
    """Return the usage that a session's events report, to continue its budget in another process.

    Args:
        events: The session's events.
        price: Computes the cost of each call; without it the cost is None.
    """
    usage = ModelUsage()
    for event in events:
        calls = summary_calls(event) or int(_is_model_call(event))
        if calls:
            used = reply_usage(event)
            cost = price(event.model_version or "", used) if price else None
            usage = usage.plus(replace(used, model_calls=calls, cost_usd=cost))
        for model, used in side_calls(event):
            usage = usage.plus(replace(used, cost_usd=price(model, used) if price else None))
        made = (call for call in event.get_function_calls() if not is_frameworks(call))
        count = sum(call.name not in PLACEHOLDERS for call in made)
        usage = replace(usage, tool_calls=usage.tool_calls + count)
    return usage


def _is_model_call(event: Event) -> bool:
    is_question = any(map(is_frameworks, event.get_function_calls()))
    return event.usage_metadata is not None or (is_reply(event) and not is_question)


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
            return _ending_response(budget)
        if room == "last":
            llm_request.append_instructions([LAST_REPLY])
            self._last_reply_of.add(callback_context.invocation_id)
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Reply in the place of a model that a shared account has no room for."""
        del llm_request
        if not isinstance(error, BudgetUsedUp):
            return None
        budget = self.budget(callback_context)
        budget.refuse_model_call(str(error))
        return _ending_response(budget)

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
        if callback_context.invocation_id not in self._last_reply_of:
            return None
        _note_limit(llm_response, budget)
        if is_cut or llm_response.get_function_calls():
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


def _ending_response(budget: Budget) -> LlmResponse:
    """Return what stands in the place of a reply for which there is no room."""
    text = f"{budget.reached} The work ended here, before it was finished."
    response = LlmResponse(content=_content(text), finish_reason=types.FinishReason.STOP)
    _note_limit(response, budget)
    return response


def _note_limit(response: LlmResponse, budget: Budget) -> None:
    noted = {LIMIT_REACHED: budget.reached}
    response.custom_metadata = {**(response.custom_metadata or {}), **noted}


def limit_reached(event: Event) -> str | None:
    """Return a sentence about the limit at which the work ended with a reply; None for others."""
    found = (event.custom_metadata or {}).get(LIMIT_REACHED)
    return None if found is None else str(found)


def _content(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])
