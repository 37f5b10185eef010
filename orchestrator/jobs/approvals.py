"""Approvals: the calls for which jobs wait, and the answers of people.

Arguments and answers are content. They are stored in Redis and in the journal only: no log, message
or error text contains them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from ..approvals import ApprovalAnswer, ApprovalRequest
from ..shortening import one_line
from ..valid_models import valid_json
from .bounds import fit, json_bytes
from .failures import (
    AnsweredAlready,
    ApprovalRefused,
    DecisionNotAllowed,
    InvalidAnswer,
    UnknownApproval,
)
from .spec import JobId

APPROVAL_ID_CHARACTERS = 20
"""Hexadecimal digits of a hash: 80 bits, so that all approvals of an installation differ."""
MAX_SHOWN_CHARACTERS = 64 * 1024
"""The size of a call's arguments as JSON up to which they are shown completely, because a person
decides by them; Redis holds them as long as the job waits."""
SHOWN_VALUE_CHARACTERS = 4_000
"""The length to which each value is cut if the arguments together are longer."""
MAX_ANSWER_BYTES = 192 * 1024
"""The size of an answer as JSON. It is stored in the journal; larger texts belong in files."""
AWAITED_CHARACTERS = 200
"""The longest list of tools in the reason that a job's state shows; an MCP server may have any
number of tools."""
KEPT_SECONDS = 30 * 24 * 3600
"""How long an answered approval is remembered, to report a second answer to it as one."""


class Approval(ApprovalRequest):
    """A call for which a job waits."""

    id: str
    job_id: JobId
    truncated: bool = False
    """Whether long values in `arguments` are cut; the call itself has them completely."""
    requested_at: float | None = None
    """Seconds since the epoch by the Redis server's clock; None before it is stored."""


def waiting_approval(job_id: JobId, confirmation_id: str, request: ApprovalRequest) -> Approval:
    """Return the approval for which a job waits, with its arguments cut for display.

    Args:
        job_id: The job.
        confirmation_id: The id of the request in the job's session.
        request: The call that needs a decision.
    """
    arguments, truncated = shown_arguments(request.arguments)
    return Approval(
        **request.model_dump(include=set(ApprovalRequest.model_fields) - {"arguments"}),
        arguments=arguments,
        id=approval_id(job_id, confirmation_id),
        job_id=job_id,
        truncated=truncated,
    )


def answer_json(answer: ApprovalAnswer) -> str:
    """Return the answer as JSON.

    Raises:
        InvalidAnswer: It is too long.
    """
    text = valid_json(answer, exclude_none=True)
    size = json_bytes(text)
    if size > MAX_ANSWER_BYTES:
        raise InvalidAnswer(f"An answer may have {MAX_ANSWER_BYTES:,} bytes as JSON, not {size:,}.")
    return text


def answer_fingerprint(data: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 of an answer as its journal entry holds it."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def approval_id(job_id: str, confirmation_id: str) -> str:
    """Return the id of an approval; a request that is repeated after a crash has the same id."""
    digest = hashlib.sha256(f"{job_id}/{confirmation_id}".encode()).hexdigest()
    return f"ap_{digest[:APPROVAL_ID_CHARACTERS]}"


def shown_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, JsonValue], bool]:
    """Return a call's arguments for display, and whether values were cut."""
    if json_bytes(arguments) <= MAX_SHOWN_CHARACTERS:
        return dict(arguments), False
    shown = {name: _cut(value) for name, value in arguments.items()}
    if json_bytes(shown) > MAX_SHOWN_CHARACTERS:  # there are many of them
        fitting = fit(shown, MAX_SHOWN_CHARACTERS)
        shown = fitting if isinstance(fitting, dict) else {"…": fitting}
    return shown, True


def _cut(value: Any) -> JsonValue:
    text = value if isinstance(value, str) else json.dumps(value)
    more = len(text) - SHOWN_VALUE_CHARACTERS
    return value if more <= 0 else f"{text[:SHOWN_VALUE_CHARACTERS]}… ({more:,} more characters)"


def refusal(approval_id: str, decision: str, reply: Sequence[str], by: str) -> ApprovalRefused:
    """Return the failure for an answer that was not accepted.

    Args:
        approval_id: The approval.
        decision: The decision of the answer.
        reply: What the script answer.lua returned.
        by: Who answered.
    """
    match reply:
        case ["settled", "withdrawn", job_id]:
            return AnsweredAlready(f"Job {job_id} has ended, so {approval_id} needs no answer.")
        case ["settled", earlier, job_id]:
            return AnsweredAlready(
                f"{approval_id} of job {job_id} was answered already: {earlier}."
            )
        case ["not you", approvers]:
            return DecisionNotAllowed(
                f"Approvals are answered by {approvers} (FANOUT_APPROVERS of the workers), and "
                f"Redis knows you as {by}."
            )
        case ["not allowed", allowed]:
            return DecisionNotAllowed(
                f"{decision} is not allowed for {approval_id}; allowed are {allowed}."
            )
    return UnknownApproval(f"There is no approval {approval_id}.")


def awaited_tools(tools: list[str]) -> str:
    """Return the reason that a job's state shows while it waits for approval of these tools."""
    return one_line(f"approval of {', '.join(dict.fromkeys(tools))}", AWAITED_CHARACTERS)
