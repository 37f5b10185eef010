"""Ends the run of a model that makes the same call again and again, after warnings.

The calls are counted in the session's events, so the count survives a restart. A reply with any
other call restarts the count, so an agent may run its tests after every edit. A result that differs
from the one before is progress: a call that looks at something that changes is a poll, not a loop.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Self

from google.adk.agents.callback_context import CallbackContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, model_validator

from .dangling_calls import is_frameworks
from .messages import is_request
from .middleware import Middleware
from .prompts import DIFFERENT_RESULTS, SAME_CALL, SAME_RESULTS
from .tool import error_result, is_polling

MAX_SAME_CALLS = 4
"""How often in a row the same call with the same arguments and result is executed; after that it
gets only a warning. Looking again after a failure, or at a file that is still growing, is ordinary
work."""

MAX_REPEATED_CALLS = 8
"""After this many the run ends: a model that ignores four warnings wastes its budget."""

MAX_SAME_COMMANDS = 10
"""The limit MAX_SAME_CALLS for `execute`: a command that waits for a build prints the same until
the build is done."""

MAX_REPEATED_COMMANDS = 20
"""The limit MAX_REPEATED_CALLS for `execute`."""

MAX_CHANGING_CALLS = 50
"""Calls in a row that are executed while their results change: a result with a time in it always
changes, so there has to be an end."""

SNAPSHOTS = ("*snapshot*", "*screenshot*")
"""Tools that look at something which others change, such as a browser's page."""

REPEATED_CALL = "REPEATED_CALL"
"""The error code of a run that the guard ended."""

SHOWN_CHARACTERS = 200
"""How much of a repeated call's arguments a warning shows: enough to recognise the call."""

_REFUSED = "repeated"
"""The key of a refused call's result, with the call's number in its row."""

Signature = tuple[str, str]
"""A call's tool and its arguments as canonical JSON."""


class LoopLimits(BaseModel):
    """How often one tool may be called in a row with the same arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_same: int = Field(default=MAX_SAME_CALLS, ge=1)
    """Calls with the same result that are executed; after that a call gets only a warning."""
    stop_after: int = Field(default=MAX_REPEATED_CALLS, ge=2)
    """Calls with the same result, warnings included, after which the run ends."""
    max_changing: int = Field(default=MAX_CHANGING_CALLS, ge=1)
    """Calls that are executed while their results change."""

    @model_validator(mode="after")
    def _warns_before_it_ends(self) -> Self:
        if self.stop_after <= self.max_same:
            raise ValueError("stop_after must be above max_same, so that a warning comes first")
        return self

    def refuses(self, same: int, calls: int) -> bool:
        """Return whether a call is refused.

        Args:
            same: The calls in a row with the same result, with this one.
            calls: The calls in a row.
        """
        return same > self.max_same or calls > self.max_changing

    def left(self, same: int, calls: int) -> int:
        """Return after how many more calls the run ends."""
        changing = self.max_changing + self.stop_after - self.max_same
        return max(0, min(self.stop_after - same, changing - calls))

    def ends(self, same: int, calls: int) -> bool:
        """Return whether the run ends."""
        return self.left(same, calls) == 0


COMMANDS = LoopLimits(max_same=MAX_SAME_COMMANDS, stop_after=MAX_REPEATED_COMMANDS)
"""The limits of `execute`."""


class LoopPolicy(LoopLimits):
    """The limits of all tools, and the exceptions."""

    exempt: tuple[str, ...] = SNAPSHOTS
    """Names of tools that are never refused, with `*` for any characters. Tools that are made to be
    called again, such as `check_task`, are exempt as well."""
    per_tool: Mapping[str, LoopLimits] = Field(default_factory=lambda: {"execute": COMMANDS})
    """Tools with limits of their own, by name."""

    def limits(self, name: str, tool: Any = None) -> LoopLimits | None:
        """Return a tool's limits; None for one that is exempt.

        Args:
            name: The tool's name.
            tool: The tool; None for one that does not exist.
        """
        if name in self.per_tool:
            return self.per_tool[name]
        if any(fnmatchcase(name, pattern) for pattern in self.exempt):
            return None
        if tool is not None and is_polling(tool):
            return None
        if getattr(tool, "only_looks", False):
            # A server says so itself, so it is believed only up to a limit.
            more = self.stop_after - self.max_same
            return LoopLimits(
                max_same=self.max_changing,
                stop_after=self.max_changing + more,
                max_changing=self.max_changing,
            )
        return self


class LoopGuard(Middleware):
    """Rejects repeated calls, and ends the run after too many.

    Args:
        policy: How many are too many.
    """

    def __init__(self, policy: LoopPolicy | None = None) -> None:
        self._policy = policy or LoopPolicy()

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Reject a call that has been made too often in a row."""
        del args  # another middleware may have changed them; what the model asked for counts
        limits = self._policy.limits(tool.name, tool)
        if limits is None:
            return None
        events = tool_context.session.events
        row = _row(events, tool_context.agent_name, tool_context.function_call_id)
        if row is None or not limits.refuses(row.same, row.calls):
            return None
        warning = SAME_CALL.format(
            tool=tool.name,
            arguments=_shortened(row.signature[1]),
            count=row.calls,
            since=datetime.fromtimestamp(row.since, UTC).strftime("%H:%M:%S UTC"),
            results=DIFFERENT_RESULTS if row.changed else SAME_RESULTS,
            left=limits.left(row.same, row.calls),
        )
        return {**error_result(warning), _REFUSED: row.calls}

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Return an error in place of the model's reply after too many repeated calls."""
        events, agent = callback_context.session.events, callback_context.agent_name
        _, last = next(_replies(events, agent), (None, []))
        for call in {_signature(call): call for call in last}.values():
            name = str(call.name)
            limits = self._policy.limits(name, llm_request.tools_dict.get(name))
            row = _row(events, agent, call.id)
            if limits is None or row is None or not limits.ends(row.same, row.calls):
                continue
            what = (
                f"The agent called {name} with the same arguments {row.calls} times in a row, "
                "despite warnings, and was stopped."
                if name in llm_request.tools_dict
                else f"The agent called {name} {row.calls} times in a row; no such tool exists."
            )
            return LlmResponse(error_code=REPEATED_CALL, error_message=what)
        return None


@dataclass(frozen=True)
class _Row:
    """The same call in reply after reply."""

    signature: Signature
    calls: int
    """The number of calls, including the newest one."""
    same: int
    """The newest calls whose results, as far as they are known, are equal."""
    since: float
    """When the row began, in seconds since the epoch."""

    @property
    def changed(self) -> bool:
        """Whether the results differed."""
        return self.same < self.calls


def _row(events: Sequence[Event], agent: str, call_id: str | None) -> _Row | None:
    """Return the row that ends with a call; None if the newest replies do not have it."""
    row = _same_calls(events, agent, call_id)
    if not row:
        return None
    results = _results(events, {str(call.id) for _, call in row}) if len(row) > 1 else {}
    same, known, is_same = 0, None, True
    for _, call in row:
        result = results.get(str(call.id))
        is_same = is_same and (known is None or result is None or result == known)
        known = known or result
        same += is_same
    since, _ = row[-1]
    return _Row(_signature(row[0][1]), len(row), same, since)


def _same_calls(
    events: Sequence[Event], agent: str, call_id: str | None
) -> list[tuple[float, types.FunctionCall]]:
    """Return the calls of a row and their times, newest first; none without the call itself."""
    row: list[tuple[float, types.FunctionCall]] = []
    signature: Signature | None = None
    kinds: frozenset[Signature] = frozenset()
    for event, made in _replies(events, agent):
        calls, signatures = made, [_signature(call) for call in made]
        if signature is None:
            ids = [call.id for call in made]
            if call_id not in ids:
                continue  # made in an earlier reply, and approved since
            calls = made[: ids.index(call_id) + 1]
            signature, kinds = signatures[len(calls) - 1], frozenset(signatures)
        elif frozenset(signatures) != kinds:
            break
        pairs = zip(calls, signatures, strict=False)  # of the newest reply, up to the call
        same = [call for call, its_own in pairs if its_own == signature]
        row += [(event.timestamp, call) for call in reversed(same)]
    return row


def _replies(
    events: Sequence[Event], agent: str
) -> Iterator[tuple[Event, list[types.FunctionCall]]]:
    """Yield the agent's replies with calls, newest first, back to the user's message."""
    for event in reversed(events):
        if is_request(event):
            return
        calls = [call for call in event.get_function_calls() if not is_frameworks(call)]
        if calls and event.author == agent:
            yield event, calls


def _results(events: Sequence[Event], call_ids: Collection[str]) -> Mapping[str, str]:
    """Return the results of some calls since the user's message, by id, without refusals."""
    found: dict[str, str] = {}
    for event in reversed(events):
        if is_request(event):
            break
        for response in event.get_function_responses():
            call_id, result = str(response.id), response.response or {}
            if call_id in call_ids and call_id not in found and _REFUSED not in result:
                # An evicted result names a file of its call.
                found[call_id] = _canonical(result).replace(call_id, "")
    return found


def _signature(call: types.FunctionCall) -> Signature:
    return str(call.name), _canonical(call.args or {})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
