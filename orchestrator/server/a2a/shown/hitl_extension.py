"""The wire models of the extension for people in the loop, `hitl/v1`.

A client that activates it gets approvals as typed metadata of the status message, and answers with
such metadata. The models are the extension's: their names and fields are not ours to choose.
"""

from __future__ import annotations

from typing import Any, Literal

from a2a.types import Message
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

HITL_URI = "https://kagent.dev/extensions/hitl/v1"


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HitlTool(_Wire):
    """A call that waits for a decision."""

    id: str
    """With which the decision comes back."""
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
    """What the server asks: may these tools run?"""

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
    """What the client answers: one decision for each call that it was shown."""

    type: Literal["tool_approval_response"] = "tool_approval_response"
    approvals: list[ToolApproval] = Field(min_length=1)


class MalformedAnswer(ValueError):
    """The metadata of the extension is not a complete answer; the text says what is missing."""


def attach(message: Message, request: ToolApprovalRequest) -> None:
    """Put a request into a message, as its metadata and as its declared extension."""
    message.metadata.update({HITL_URI: request.model_dump(exclude_none=True)})
    message.extensions.append(HITL_URI)


def response_in(message: Message) -> ToolApprovalResponse | None:
    """Return the answer in a message; None when it has none.

    Raises:
        MalformedAnswer: It has one that is not in the extension's form.
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
