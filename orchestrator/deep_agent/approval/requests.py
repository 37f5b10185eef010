"""Requests for approval and their answers, read from and written to a session's events.

A request identifies the call by a fingerprint of the tool and its exact arguments; an answer is
valid for the call with that fingerprint only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.genai import types
from pydantic import ValidationError

from fanout.orchestrator.approvals import DECISIONS, ApprovalAnswer, ApprovalRequest, fingerprint


class PendingApproval(ApprovalRequest):
    """A request in a session that is not answered yet."""

    confirmation_id: str
    """The id of ADK's confirmation call, to which the answer is given."""

    def payload(self) -> dict[str, Any]:
        """Return the payload of ADK's confirmation request; a parent passes on that of a child."""
        return self.model_dump(
            mode="json", include={"tool", "arguments", "decisions", "sha256", "agent"}
        )


def confirmation_calls(event: Event) -> list[types.FunctionCall]:
    """Return the calls in an event that request a confirmation from a person.

    ADK marks its own calls as long-running; a model's call of that name is not one of them.
    """
    marked = event.long_running_tool_ids or ()
    return [
        call
        for call in event.get_function_calls()
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME and call.id in marked
    ]


def confirmation_answers(event: Event) -> list[types.FunctionResponse]:
    """Return a person's answers to confirmation calls in an event."""
    if event.author != "user":
        return []
    responses = event.get_function_responses()
    return [found for found in responses if found.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME]


def pending_approvals(events: Iterable[Event]) -> list[PendingApproval]:
    """Return the requests in a session's events that are not answered, oldest first."""
    waiting: dict[str, PendingApproval] = {}
    for event in events:
        for answer in confirmation_answers(event):
            waiting.pop(answer.id or "", None)
        for call in confirmation_calls(event):
            waiting[str(call.id)] = request_of(call, event.author)
    return list(waiting.values())


def answers_message(
    answers: Iterable[tuple[PendingApproval, ApprovalAnswer]],
) -> types.Content:
    """Return the message that resumes a run.

    Args:
        answers: All pending requests of the run with their answers; with fewer it stays paused.
    """
    return types.Content(
        role="user",
        parts=[
            types.Part(
                function_response=types.FunctionResponse(
                    id=pending.confirmation_id,
                    name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
                    response=_as_response(pending, answer),
                )
            )
            for pending, answer in answers
        ],
    )


def _as_response(pending: PendingApproval, answer: ApprovalAnswer) -> dict[str, Any]:
    """Return the response to ADK's confirmation call, with the fingerprint of the shown call."""
    given = answer.model_dump(mode="json", exclude={"by", "person"}) | {"sha256": pending.sha256}
    payload = {name: value for name, value in given.items() if value not in (None, "")}
    return {"confirmed": answer.decision in ("approve", "edit"), "payload": payload}


def request_of(call: types.FunctionCall, author: str) -> PendingApproval:
    """Return the request that a confirmation call of ADK makes.

    A tool that requests a confirmation itself, without a policy, allows `approve` and `reject`.

    Args:
        call: The confirmation call, as of `confirmation_calls`.
        author: The author of its event; the agent, if the call does not name one.
    """
    made = (call.args or {}).get("originalFunctionCall") or {}
    confirmation = (call.args or {}).get("toolConfirmation") or {}
    payload: Any = confirmation.get("payload")
    known = {
        "confirmation_id": str(call.id),
        "call_id": str(made.get("id")),
        "hint": str(confirmation.get("hint") or ""),
        "agent": author,
    }
    try:
        return PendingApproval.model_validate({**known, **payload})
    except (TypeError, ValidationError):  # no payload of ours
        tool, arguments = str(made.get("name")), made.get("args") or {}
        return PendingApproval(
            **known,
            tool=tool,
            arguments=arguments,
            decisions=("approve", "reject"),
            sha256=fingerprint(tool, arguments),
        )


def answer_in(response: Mapping[str, Any] | None, pending: PendingApproval) -> ApprovalAnswer | str:
    """Return the answer in a confirmation's response, or the reason why it is not valid.

    A front end that knows only ADK sends `confirmed`, with the payload that it got or without one:
    `confirmed` with other arguments than the call's own is an edit.

    Args:
        response: The response to the confirmation call.
        pending: The request.
    """
    given = response or {}
    confirmed, payload = given.get("confirmed") is True, given.get("payload") or {}
    if not isinstance(payload, Mapping):
        return "its payload is not an object"
    edited: Any = payload.get("arguments")
    decision: Any = payload.get("decision")
    if decision is None:
        changed = edited is not None and edited != pending.arguments
        decision = ("edit" if changed else "approve") if confirmed else "reject"
    if fault := _fault(decision, payload, confirmed=confirmed):
        return fault
    if payload.get("sha256") not in (None, pending.sha256):
        return "it was given for other arguments"
    if decision not in pending.decisions:
        return f"{decision} is not allowed for {pending.tool}"
    return ApprovalAnswer(
        decision=decision,
        message=str(payload.get("message") or ""),
        arguments=dict(edited) if decision == "edit" else None,
        response=payload.get("response") if decision == "respond" else None,
    )


def _fault(decision: Any, payload: Mapping[str, Any], *, confirmed: bool) -> str | None:
    if decision not in DECISIONS:
        return f"{decision!r} is not a decision"
    if confirmed != (decision in ("approve", "edit")):
        return f"its decision is {decision}, but confirmed={str(confirmed).lower()}"
    if decision == "edit" and not isinstance(payload.get("arguments"), Mapping):
        return "edit needs the arguments, as an object"
    if decision == "respond" and payload.get("response") is None:
        return "respond needs a response"
    return None
