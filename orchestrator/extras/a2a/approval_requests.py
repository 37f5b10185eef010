"""Approvals as what a task asks its client: the status message of `input_required`.

A client that activates the extension `hitl/v1` gets them as typed metadata of that message, and
answers with such metadata. The models are the extension's: their names and fields are fixed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from a2a.types import Message, Part, Role
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...jobs.approvals import Approval
from ...jobs.state import JobRecord
from ...server.owned_jobs import OwnedJobs
from ...shortening import one_line
from ...valid_text import escape_hidden, printable
from .protocol import data_part, job_context

HITL_URI = "https://kagent.dev/extensions/hitl/v1"
LONG_RUNNING = "adk_is_long_running"
"""The key of a call's metadata that says whether it waits for a person."""
CONFIRMATION = "adk_request_confirmation"
"""The function by which ADK's agents ask for a confirmation, and its clients answer."""
HOW_TO_ANSWER = (
    "A person decides on the service's page or with `fanout approve ID`. A client answers with the "
    "taskId and one function_response part for each call, with the call's id, the name "
    f'{CONFIRMATION} and the response {{"confirmed": true}} or {{"confirmed": false}}. A text is '
    "not an approval: it is passed on to the agent."
)
SHOWN_ARGUMENTS = 300
"""The longest arguments of a call in the question: a few lines that a person reads. The part of
the call has all of them."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HitlTool(_Wire):
    """A call that waits for a decision."""

    id: str
    """The id with which the decision is returned."""
    call_id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict)


class NestedRequest(_Wire):
    """The calls of a sub-agent."""

    subagent_name: str | None = None
    task_id: str | None = None
    context_id: str | None = None
    tools: list[HitlTool] = Field(min_length=1)


class ToolApprovalRequest(_Wire):
    """A question of the server: may these tools run?"""

    type: Literal["tool_approval_request"] = "tool_approval_request"
    hint: str | None = None
    tools: list[HitlTool] = Field(min_length=1)
    nested: NestedRequest | None = None


class ToolApproval(_Wire):
    """One decision."""

    id: str = Field(min_length=1)
    approved: bool
    rejection_reason: str | None = None


class ToolApprovalResponse(_Wire):
    """The client's answer: one decision for each call that it was shown."""

    type: Literal["tool_approval_response"] = "tool_approval_response"
    approvals: list[ToolApproval] = Field(min_length=1)


class MalformedAnswer(ValueError):
    """The metadata of the extension is not a complete answer; the text says what is missing."""


def attach(message: Message, request: ToolApprovalRequest) -> None:
    """Put a request into a message, as its metadata and as its declared extension."""
    message.metadata.update({HITL_URI: request.model_dump(exclude_none=True)})
    message.extensions.append(HITL_URI)


def read_response(message: Message) -> ToolApprovalResponse | None:
    """Return the answer in a message; None when it has none.

    Raises:
        MalformedAnswer: The answer is not in the extension's form.
    """
    if HITL_URI not in message.extensions and HITL_URI not in message.metadata:
        return None
    payload = MessageToDict(message.metadata).get(HITL_URI)
    if payload is None:
        return None
    try:
        return ToolApprovalResponse.model_validate(payload)
    except ValidationError as failure:
        error = failure.errors()[0]
        at = ".".join(map(str, error["loc"])) or "type"
        raise MalformedAnswer(f"{HITL_URI} {at}: {error['msg']}.") from None


@dataclass(frozen=True)
class AwaitedCall:
    """A call that waits for a decision, and the job whose call it is."""

    approval: Approval
    record: JobRecord


async def waiting_calls(jobs: OwnedJobs) -> list[AwaitedCall]:
    """Return all calls of the caller's jobs that wait for a decision, oldest first."""
    approvals = await jobs.approvals()
    records = {one.id: one for one in await jobs.owned_records({one.job_id for one in approvals})}
    return [AwaitedCall(one, records[one.job_id]) for one in approvals if one.job_id in records]


async def waiting_below(jobs: OwnedJobs, record: JobRecord) -> list[AwaitedCall]:
    """Return the calls of a job and of those below it that wait for a decision, oldest first."""
    found = [one for one in await waiting_calls(jobs) if one.record.root_id == record.root_id]
    if record.parent_id is not None and any(one.record.id != record.id for one in found):
        below = {one.id for one in await jobs.tree(record.id)}
        found = [one for one in found if one.record.id in below]
    return found


def asking(record: JobRecord, waiting: Sequence[AwaitedCall], *, hitl: bool) -> Message:
    """Return the message that asks for decisions.

    Args:
        record: The job of the task.
        waiting: The calls, at least one.
        hitl: Whether the client has activated the extension `hitl/v1`.
    """
    ids = "-".join(one.approval.id for one in waiting)
    message = Message(
        message_id=f"{record.id}:{ids}"[:200],
        task_id=record.id,
        context_id=job_context(record),
        role=Role.ROLE_AGENT,
        parts=[Part(text=_question(waiting)), *map(_confirmation, waiting)],
    )
    if hitl:
        attach(message, _typed(record, waiting))
    return message


def _question(waiting: Sequence[AwaitedCall]) -> str:
    """Return the question for a person: each call with its arguments, and how to decide."""
    calls = []
    for one in waiting:
        arguments = escape_hidden(json.dumps(one.approval.arguments, ensure_ascii=False))
        about = f": {one.approval.hint}" if one.approval.hint else ""
        who = f"{one.approval.agent} asks to run {one.approval.tool}"
        calls.append(
            f"- {one.approval.id}: {one_line(printable(who))} with "
            f"{one_line(arguments, SHOWN_ARGUMENTS)}{printable(about)}"
        )
    return "\n".join(("These calls wait for a decision:", *calls, HOW_TO_ANSWER))


def _hint(waiting: Sequence[AwaitedCall]) -> str:
    calls = ", ".join(f"{one.approval.tool} of {one.approval.agent}" for one in waiting)
    return f"These calls wait for a decision: {one_line(printable(calls))}."


def _confirmation(one: AwaitedCall) -> Part:
    """Return the call of ADK's confirmation, which its clients show and answer."""
    approval = one.approval
    call = {
        "id": approval.id,
        "name": CONFIRMATION,
        "args": {
            "originalFunctionCall": {
                "id": approval.call_id,
                "name": approval.tool,
                "args": approval.arguments,
            },
            "toolConfirmation": {
                "hint": approval.hint or f"{approval.agent} asks to run {approval.tool}.",
                "confirmed": False,
                "payload": {
                    "agent": approval.agent,
                    "task_id": approval.job_id,
                    "decisions": list(approval.decisions),
                    "truncated": approval.truncated,
                },
            },
        },
    }
    return data_part(call, adk_type="function_call", adk_is_long_running=True)


def _typed(record: JobRecord, waiting: Sequence[AwaitedCall]) -> ToolApprovalRequest:
    """Return the calls in the form of the extension; those of a single sub-agent as nested."""
    tools = [
        HitlTool(
            id=one.approval.id,
            call_id=one.approval.call_id,
            name=one.approval.tool,
            args=one.approval.arguments,
        )
        for one in waiting
    ]
    jobs = {one.record.id: one.record for one in waiting}
    if len(jobs) > 1 or record.id in jobs:
        return ToolApprovalRequest(hint=_hint(waiting), tools=tools)
    child = next(iter(jobs.values()))
    entry = HitlTool(id=child.id, call_id=child.id, name=child.agent)
    nested = NestedRequest(
        subagent_name=child.agent, task_id=child.id, context_id=job_context(child), tools=tools
    )
    return ToolApprovalRequest(hint=_hint(waiting), tools=[entry], nested=nested)
