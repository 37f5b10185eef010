"""What a person is asked to approve and what they may answer, as it stands in a session's events.

A request names the call by a fingerprint of the tool and its exact arguments; an answer counts for
the call with that fingerprint only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.genai import types

Decision = Literal["approve", "edit", "reject", "respond"]
"""What a person may do: let the call run, run it with other arguments, refuse it, or answer in its
stead."""
InterruptOn = Mapping[str, bool | Sequence[Decision]]
"""Tool name, matched exactly -> whether to ask, or which decisions to offer."""

DECISIONS: tuple[Decision, ...] = get_args(Decision)
USUAL_DECISIONS: tuple[Decision, ...] = ("approve", "edit", "reject")
"""Those of `True`. `respond` puts a person's words where the tool's result would be, so it is asked
for."""


@dataclass(frozen=True)
class PendingApproval:
    """A call that waits for a person."""

    confirmation_id: str
    """The id of ADK's confirmation call: it is answered."""
    call_id: str
    tool: str
    arguments: dict[str, Any]
    decisions: tuple[Decision, ...]
    sha256: str
    """The fingerprint of the tool and its arguments."""
    agent: str
    hint: str = ""
    """Why it is asked again, where it is."""

    def payload(self) -> dict[str, Any]:
        """The request as it crosses a boundary.

        Also as that of a parent's call whose child waits.
        """
        return {
            "tool": self.tool,
            "arguments": self.arguments,
            "decisions": list(self.decisions),
            "sha256": self.sha256,
            "agent": self.agent,
        }


@dataclass(frozen=True)
class Answer:
    """A person's answer to one request."""

    decision: Decision
    sha256: str | None = None
    """The fingerprint of the call that the person saw; None trusts the request's id alone."""
    message: str = ""
    """A word to the agent."""
    arguments: Mapping[str, Any] | None = None
    """For `edit`: what the call runs with, in full."""
    response: Any = None
    """For `respond`: what the agent is told in place of the tool's result."""

    def as_response(self) -> dict[str, Any]:
        """What ADK's confirmation call is answered with."""
        given = {
            "decision": self.decision,
            "sha256": self.sha256,
            "message": self.message,
            "arguments": None if self.arguments is None else dict(self.arguments),
            "response": self.response,
        }
        payload = {name: value for name, value in given.items() if value not in (None, "")}
        return {"confirmed": self.decision in ("approve", "edit"), "payload": payload}


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """The SHA-256 of a call: the tool and its arguments as canonical JSON."""
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()


def checked_policy(interrupt_on: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """The decisions by tool; a tool with False is left out.

    Raises:
        ValueError: a value is neither a bool nor a list of decisions, or the list is empty.
    """
    policy: dict[str, tuple[Decision, ...]] = {}
    for tool, value in interrupt_on.items():
        if isinstance(value, bool):
            policy |= {tool: USUAL_DECISIONS} if value else {}
            continue
        named = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
        if not named or any(decision not in DECISIONS for decision in named):
            raise ValueError(
                f"interrupt_on for {tool!r} must be true, false or a list out of {', '.join(DECISIONS)}."
            )
        policy[tool] = tuple(decision for decision in DECISIONS if decision in named)
    return policy


def merge_policies(parent: InterruptOn, child: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """The stricter of two policies, tool by tool.

    What either guards is guarded, with what both allow.

    Two lists that have nothing in common leave `reject`: nobody may widen what the other allows.
    """
    first, second = checked_policy(parent), checked_policy(child)
    merged = first | second
    for tool in first.keys() & second.keys():
        both = tuple(decision for decision in first[tool] if decision in second[tool])
        merged[tool] = both or ("reject",)
    return merged


def confirmation_calls(event: Event) -> list[types.FunctionCall]:
    """The calls in an event by which a person is asked.

    ADK marks those that it makes as long-running; a model's call of that name is not one of them.
    """
    marked = event.long_running_tool_ids or ()
    return [
        call
        for call in event.get_function_calls()
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME and call.id in marked
    ]


def confirmation_answers(event: Event) -> list[types.FunctionResponse]:
    """The answers in an event that a person gave."""
    if event.author != "user":
        return []
    responses = event.get_function_responses()
    return [found for found in responses if found.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME]


def pending_approvals(events: Iterable[Event]) -> list[PendingApproval]:
    """The requests in a session's events that nobody has answered yet, oldest first."""
    waiting: dict[str, PendingApproval] = {}
    for event in events:
        for answer in confirmation_answers(event):
            waiting.pop(answer.id or "", None)
        for call in confirmation_calls(event):
            waiting[str(call.id)] = request_of(call, event.author)
    return list(waiting.values())


def answers_message(answers: Iterable[tuple[PendingApproval, Answer]]) -> types.Content:
    """The message with which a run goes on.

    Give all answers at once: the run pauses until it has them.
    """
    return types.Content(
        role="user",
        parts=[
            types.Part(
                function_response=types.FunctionResponse(
                    id=pending.confirmation_id,
                    name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
                    response=answer.as_response(),
                )
            )
            for pending, answer in answers
        ],
    )


def request_of(call: types.FunctionCall, author: str) -> PendingApproval:
    """A request as it was asked.

    That of a tool which asks by itself allows to approve or reject.
    """
    made = (call.args or {}).get("originalFunctionCall") or {}
    confirmation = (call.args or {}).get("toolConfirmation") or {}
    tool, arguments = str(made.get("name")), made.get("args") or {}
    payload = confirmation.get("payload")
    if (
        not isinstance(payload, dict)
        or not {"tool", "arguments", "decisions", "sha256"} <= payload.keys()
    ):
        payload = {
            "tool": tool,
            "arguments": arguments,
            "decisions": ("approve", "reject"),
            "sha256": fingerprint(tool, arguments),
        }
    return PendingApproval(
        confirmation_id=str(call.id),
        call_id=str(made.get("id")),
        tool=str(payload["tool"]),
        arguments=dict(payload["arguments"]),
        decisions=tuple(payload["decisions"]),
        sha256=str(payload["sha256"]),
        agent=str(payload.get("agent") or author),
        hint=str(confirmation.get("hint") or ""),
    )


def answer_in(response: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> Answer | str:
    """The answer in a confirmation's response, or what is wrong with it.

    A front end that knows ADK only sends `confirmed`, with the payload that it was given or none: a
    yes to other arguments than the call's own is an edit.
    """
    given = response or {}
    confirmed, payload = given.get("confirmed") is True, given.get("payload") or {}
    if not isinstance(payload, Mapping):
        return "its payload is not an object"
    edited, named = payload.get("arguments"), payload.get("decision")
    if named is None:
        changed = edited is not None and edited != arguments
        named = ("edit" if changed else "approve") if confirmed else "reject"
    if fault := _fault(named, payload, confirmed=confirmed):
        return fault
    decision = cast("Decision", named)
    return Answer(
        decision=decision,
        sha256=payload.get("sha256"),
        message=str(payload.get("message") or ""),
        arguments=edited if decision == "edit" else None,
        response=payload.get("response"),
    )


def _fault(decision: Any, payload: Mapping[str, Any], *, confirmed: bool) -> str | None:
    if decision not in DECISIONS:
        return f"{decision!r} is no decision"
    if confirmed != (decision in ("approve", "edit")):
        return f"it says {decision} and confirmed={str(confirmed).lower()}"
    if decision == "edit" and not isinstance(payload.get("arguments"), Mapping):
        return "edit needs the arguments, as an object"
    if decision == "respond" and payload.get("response") is None:
        return "respond needs a response"
    return None
