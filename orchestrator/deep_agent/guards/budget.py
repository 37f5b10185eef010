"""What a run may cost: model calls, tokens, tool calls, money, time.

The run is ended in order: with the last reply that fits, the model is told to sum up, and calls in
that reply are dropped; where not even that fits, no model is called. Tokens and money are known
only after a call, so they may be passed by what one call grows over the one before it. When the
time is over, whatever runs is cancelled and its calls are sealed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from google.adk.events import Event

from orchestrator.deep_agent.guards.dangling_calls import FRAMEWORK_PREFIX
from orchestrator.deep_agent.guards.replies import STAND_INS
from orchestrator.deep_agent.messages import is_reply
from orchestrator.deep_agent.models.usage import ModelUsage, reply_usage, summary_calls


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """The most that a run may consume; None is no limit."""

    max_model_calls: int | None = None
    max_tokens: int | None = None
    """Input and output tokens together."""
    max_tool_calls: int | None = None
    max_cost_usd: float | None = None
    max_seconds: float | None = None
    """Wall clock while a run is under way: what a person takes between two runs does not count."""


@dataclass(frozen=True)
class Account:
    """What several runs may consume together, of model calls, tokens and money, and have consumed."""

    limits: BudgetLimits
    used: ModelUsage
    scope: str = ""
    """Stands in the limits' names: `max_tokens` is `max_tree_tokens` where it is `tree_`."""
    whose: str = ""
    """Whose limits they are, in words that follow their value."""


Accounts = Callable[[], Awaitable[Sequence[Account]]]
"""Reads the accounts that a run shares with others, as they are now."""

Price = Callable[[str, ModelUsage], float | None]
"""What a model's call cost in US dollars; None when its price is not known."""


class Budget:
    """The running account of one run; give `used` to go on with an earlier one."""

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
        """What is used up to now."""
        self.reached: str | None = None
        """The sentence that names the limit which ended the run, or made it sum up."""
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
        """How long runs have been under way."""
        return self._seconds_before + (time.monotonic() - self._running_since if self._runs else 0)

    @property
    def seconds_left(self) -> float | None:
        """Until the time is over; None without a limit."""
        return None if self.limits.max_seconds is None else self.limits.max_seconds - self.seconds

    @property
    def is_out_of_time(self) -> bool:
        """Whether it was the time that ended the run."""
        return self.reached is not None and self.reached.startswith(_head("max_seconds"))

    def run_begins(self, run: str) -> None:
        """The clock runs from here on, until every run has ended."""
        if not self._runs:
            self._running_since = time.monotonic()
        self._runs.add(run)

    def run_ends(self, run: str) -> None:
        """A run is over, or waits for somebody."""
        before = self.seconds
        self._runs.discard(run)
        if not self._runs:
            self._seconds_before, self._turn_began = before, None

    def end_for_time(self) -> None:
        """The time is over."""
        self.reached = _sentence("max_seconds", self.limits.max_seconds or 0, self.seconds)

    async def look_around(self) -> None:
        """Read what others have consumed of what is shared; to be done before each model call."""
        if self._shared is not None:
            self._accounts = await self._shared()

    def start_model_call(self) -> str:
        """Ask for one more call: `go`, `last` (it has to sum up) or `stop` (it does not fit)."""
        reason, room = self._tightest()
        if reason is not None:
            self.reached = reason
        if room == "stop":
            return room
        self.usage = replace(self.usage, model_calls=self.usage.model_calls + 1)
        return room

    def add_model_reply(self, model: str, used: ModelUsage) -> None:
        """Book what a reply cost."""
        if self._price is not None:
            used = replace(used, cost_usd=self._price(model, used))
        self._last_call = used
        self.usage = self.usage.plus(used)

    def book(self, model: str, used: ModelUsage) -> None:
        """Book a model call that was made for the run beside its turns: a summary's, for one."""
        last = self._last_call
        self.usage = replace(self.usage, model_calls=self.usage.model_calls + 1)
        self.add_model_reply(model, used)
        self._last_call = last  # the next turn will be like the last turn

    @property
    def has_room_beside(self) -> bool:
        """Whether a call beside the turns leaves enough for the next turn."""
        began = self._turn_began
        _, room = self._tightest()
        self._turn_began = began  # asking is no turn
        return room == "go"

    def take_tool_call(self) -> bool:
        """Book one tool call; False when none is left."""
        most = self.limits.max_tool_calls
        if most is not None and self.usage.tool_calls >= most:
            return False
        self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + 1)
        return True

    def _tightest(self) -> tuple[str | None, str]:
        accounts = [Account(self.limits, self.usage), *self._accounts]
        rooms = [room for account in accounts for room in _rooms(account, self._last_call)]
        most = self.limits.max_tool_calls
        if most is not None and self.usage.tool_calls >= most:
            rooms.append((_sentence("max_tool_calls", most, self.usage.tool_calls), "last"))
        rooms.append(self._time_room())
        for wanted in ("stop", "last"):
            for reason, room in rooms:
                if room == wanted:
                    return reason, room
        return None, "go"

    def _time_room(self) -> tuple[str | None, str]:
        """Whether the time allows another turn like the last one.

        What runs too long is cut anyway.
        """
        now, most = self.seconds, self.limits.max_seconds
        turn = 0.0 if self._turn_began is None else now - self._turn_began
        self._turn_began = now
        if most is None or now + turn < most:
            return None, "go"
        return _sentence("max_seconds", most, now), "stop" if now >= most else "last"


def _rooms(account: Account, last: ModelUsage) -> list[tuple[str | None, str]]:
    """Whether an account has room for the next call, by each of its limits."""
    limits, used = account.limits, account.used
    measures = (
        ("model_calls", limits.max_model_calls, used.model_calls, 1),
        ("tokens", limits.max_tokens, used.tokens, last.tokens),
        ("cost_usd", limits.max_cost_usd, used.cost_usd or 0, last.cost_usd or 0),
    )
    return [
        _room(f"max_{account.scope}{name}", most, spent, next_call, account.whose)
        for name, most, spent, next_call in measures
    ]


def _room(
    name: str, most: float | None, used: float, next_call: float, whose: str = ""
) -> tuple[str | None, str]:
    """Whether there is room for the next call, taken to be like the one before, and for one more after it."""
    if most is None or used + 2 * next_call <= most:
        return (
            (None, "go")
            if most is None or used < most
            else (_sentence(name, most, used, whose), "stop")
        )
    room = "last" if used + next_call <= most else "stop"
    return _sentence(name, most, used, whose), room


def _sentence(name: str, most: float, used: float, whose: str = "") -> str:
    return f"{_head(name)}={most:g}{whose} is reached ({used:.6g} used)."


def _head(name: str) -> str:
    return f"The limit {name}"


def usage_of(events: Iterable[Event], price: Price | None = None) -> ModelUsage:
    """What a session's events tell of an account, to go on with it in another process."""
    usage = ModelUsage()
    for event in events:
        calls = summary_calls(event) or int(_is_model_call(event))
        if calls:
            used = reply_usage(event)
            cost = price(event.model_version or "", used) if price else None
            usage = usage.plus(replace(used, model_calls=calls, cost_usd=cost))
        made = [call for call in event.get_function_calls() if not _is_no_tool(call.name)]
        usage = replace(usage, tool_calls=usage.tool_calls + len(made))
    return usage


def _is_model_call(event: Event) -> bool:
    if event.usage_metadata is not None:
        return True
    is_question = any(
        str(call.name).startswith(FRAMEWORK_PREFIX) for call in event.get_function_calls()
    )
    return is_reply(event) and not is_question


def _is_no_tool(name: str | None) -> bool:
    return name in STAND_INS or str(name).startswith(FRAMEWORK_PREFIX)
