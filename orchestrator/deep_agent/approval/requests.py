"""Requests for approval and their answers, as a session's events hold them.

A request names the call by a fingerprint of the tool and its exact arguments; an answer counts for
the call with that fingerprint only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.genai import types
from pydantic import ValidationError

from orchestrator.approvals import DECISIONS, ApprovalAnswer, ApprovalRequest, fingerprint


class PendingApproval(ApprovalRequest):
    """A request in a session that nobody has answered yet."""

    confirmation_id: str
    """The id of ADK's confirmation call, which is answered."""

    def payload(self) -> dict[str, Any]:
        """Return the request as JSON, also for a parent's call whose child waits."""
        return self.model_dump(
            mode="json", include={"tool", "arguments", "decisions", "sha256", "agent"}
        )


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


def answers_message(
    answers: Iterable[tuple[PendingApproval, ApprovalAnswer]],
) -> types.Content:
    """Return the message that resumes a run: the run pauses until it has all answers at once."""
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
    """Return the response to ADK's confirmation call, bound to the call that the person saw."""
    given = answer.model_dump(mode="json", exclude={"by"}) | {"sha256": pending.sha256}
    payload = {name: value for name, value in given.items() if value not in (None, "")}
    return {"confirmed": answer.decision in ("approve", "edit"), "payload": payload}


def request_of(call: types.FunctionCall, author: str) -> PendingApproval:
    """Return the request that a confirmation call of ADK makes.

    A tool that asks by itself, without a policy, allows to approve or to reject.
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
    """Return the answer in a confirmation's response, or what is wrong with it.

    A front end that knows only ADK sends `confirmed`, with the payload that it was given or none:
    a yes to other arguments than the call's own is an edit.
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
        return f"{decision!r} is no decision"
    if confirmed != (decision in ("approve", "edit")):
        return f"it says {decision} and confirmed={str(confirmed).lower()}"
    if decision == "edit" and not isinstance(payload.get("arguments"), Mapping):
        return "edit needs the arguments, as an object"
    if decision == "respond" and payload.get("response") is None:
        return "respond needs a response"
    return None
