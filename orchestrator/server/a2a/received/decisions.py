"""Decisions about calls in a client's message: ADK's confirmations, or those of `hitl/v1`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from a2a.types import Message, Part
from a2a.utils.errors import InvalidParamsError
from pydantic import JsonValue

from fanout.orchestrator.approvals import DECISIONS, Decision
from fanout.orchestrator.server.a2a.shown.approval_requests import CONFIRMATION
from fanout.orchestrator.server.a2a.shown.hitl_extension import MalformedAnswer, response_in
from fanout.orchestrator.server.a2a.shown.parts import plain
from fanout.orchestrator.server.owned_jobs import OwnedJobs


@dataclass(frozen=True)
class Answer:
    """A decision about one call."""

    approval_id: str
    decision: Decision
    message: str = ""
    arguments: dict[str, JsonValue] | None = None
    response: JsonValue = None


def answers_in(message: Message, awaited: Collection[str]) -> list[Answer]:
    """Return the decisions in a message; none of them may be about another call.

    Args:
        message: The client's message.
        awaited: The ids of the approvals for which the task waits.

    Raises:
        InvalidParamsError: An id is unknown or twice there, or an answer is not understood. With
            `hitl/v1`, also when one is missing: what is left out never counts as approved.
    """
    try:
        typed = response_in(message)
    except MalformedAnswer as failure:
        raise InvalidParamsError(str(failure)) from None
    if typed is not None:
        answers = [
            Answer(
                one.id, "approve" if one.approved else "reject", message=one.rejection_reason or ""
            )
            for one in typed.approvals
        ]
        missing = set(awaited) - {one.approval_id for one in answers}
        if missing:
            raise InvalidParamsError(f"No decision about {', '.join(sorted(missing))}.")
    else:
        answers = list(_confirmations(message))
    ids = [one.approval_id for one in answers]
    if len(ids) != len(set(ids)):
        raise InvalidParamsError("There are two decisions about the same call.")
    unknown = [one for one in ids if one not in awaited]
    if unknown:
        raise InvalidParamsError(f"The task does not wait for a decision about {unknown[0][:64]}.")
    return answers


async def give(jobs: OwnedJobs, answers: Collection[Answer]) -> None:
    """Give decisions.

    Raises:
        ApprovalRefused: One was not accepted; those before it are given.
        NotAllowed: The caller may not approve.
    """
    for one in answers:
        await jobs.answer(
            one.approval_id,
            one.decision,
            arguments=one.arguments,
            response=one.response,
            message=one.message,
        )


def is_confirmation(part: Part) -> bool:
    """Return whether a part is a decision in the form of ADK's confirmations."""
    kind = part.metadata.fields["adk_type"].string_value if "adk_type" in part.metadata else ""
    name = part.data.struct_value.fields
    return bool(
        kind == "function_response" and "name" in name and name["name"].string_value == CONFIRMATION
    )


def _confirmations(message: Message) -> Iterator[Answer]:
    for part in message.parts:
        if is_confirmation(part):
            yield _confirmation(plain(part.data))


def _confirmation(data: dict[str, Any]) -> Answer:
    """Return the decision of ADK's confirmation.

    Its payload may hold a `decision` of ours beside `confirmed`, with its `arguments`, `response`
    or `message`.
    """
    answer = _unwrapped(data.get("response"))
    approval_id, confirmed = data.get("id"), answer.get("confirmed")
    payload = answer.get("payload")
    given = payload if isinstance(payload, dict) else {}
    if not isinstance(approval_id, str) or not isinstance(confirmed, bool):
        raise InvalidParamsError(
            'A confirmation has the id of the call and the response {"confirmed": true} or false.'
        )
    decision = given.get("decision", "approve") if confirmed else "reject"
    arguments, message = given.get("arguments"), given.get("message", "")
    if decision not in DECISIONS or not isinstance(message, str):
        raise InvalidParamsError(f"A decision is one of {', '.join(DECISIONS)}.")
    if arguments is not None and not isinstance(arguments, dict):
        raise InvalidParamsError("arguments is an object: the complete arguments of the call.")
    return Answer(
        approval_id,
        decision,
        message=message,
        arguments=arguments if decision == "edit" else None,
        response=given.get("response") if decision == "respond" else None,
    )


def _unwrapped(response: Any) -> dict[str, Any]:
    """Return the answer; some clients of ADK send it as a text inside of `response`."""
    inner = response.get("response") if isinstance(response, dict) else None
    if isinstance(inner, str) and "confirmed" not in response:
        try:
            response = json.loads(inner)
        except (ValueError, RecursionError):
            response = None
    return response if isinstance(response, dict) else {}
