"""Approvals: the calls for which jobs wait, and what a person answered.

Arguments and answers are content. They stand in Redis, in the journal and until then in the
request, and nowhere else: no log, message or error text holds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from orchestrator.approvals import ApprovalAnswer, ApprovalRequest
from orchestrator.jobs.failures import (
    AnsweredAlready,
    ApprovalRefused,
    DecisionNotAllowed,
    InvalidAnswer,
    UnknownApproval,
)
from orchestrator.jobs.spec import JobId

APPROVAL_ID_CHARACTERS = 20
"""Hexadecimal ones of a hash: 80 bits, so that no two approvals of an installation meet."""
MAX_SHOWN_CHARACTERS = 64 * 1024
"""Of a call's arguments as JSON: a person judges by them, so they are whole where that is possible
at all; Redis holds them for as long as the job waits."""
SHOWN_VALUE_CHARACTERS = 4_000
"""How much of a text is left where the arguments together are longer."""
MAX_ANSWER_CHARACTERS = 256 * 1024
"""Of an answer as JSON. It stays in the journal; larger texts belong in files."""
KEPT_SECONDS = 30 * 24 * 3600
"""How long an answered approval is remembered, to say so to whoever answers it again."""


class Approval(ApprovalRequest):
    """A call for which a job waits."""

    id: str
    job_id: JobId
    truncated: bool = False
    """Whether long texts in `arguments` are cut; the call has them whole."""
    requested_at: float | None = None
    """Seconds since the epoch by the Redis server's clock; None before it is stored."""


def waiting_approval(job_id: JobId, confirmation_id: str, request: ApprovalRequest) -> Approval:
    """Return the approval for which a job waits, its arguments cut to what a person is shown."""
    arguments, truncated = shown_arguments(request.arguments)
    return Approval(
        **request.model_dump(include=set(ApprovalRequest.model_fields) - {"arguments"}),
        arguments=arguments,
        id=approval_id(job_id, confirmation_id),
        job_id=job_id,
        truncated=truncated,
    )


def serialized(answer: ApprovalAnswer) -> str:
    """Return the answer as JSON.

    Raises:
        InvalidAnswer: it is too long, or not Unicode.
    """
    try:
        text = answer.model_dump_json(exclude_none=True)
    except ValueError:
        raise InvalidAnswer("The answer holds text that is not valid Unicode.") from None
    if len(text) > MAX_ANSWER_CHARACTERS:
        raise InvalidAnswer(
            f"An answer may have {MAX_ANSWER_CHARACTERS:,} characters, not {len(text):,}."
        )
    return text


def approval_id(job_id: str, confirmation_id: str) -> str:
    """The id of an approval: the same request, asked again after a crash, is the same approval."""
    digest = hashlib.sha256(f"{job_id}/{confirmation_id}".encode()).hexdigest()
    return f"ap_{digest[:APPROVAL_ID_CHARACTERS]}"


def shown_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, JsonValue], bool]:
    """Arguments as a person is shown them, and whether something was cut."""
    if len(json.dumps(arguments)) <= MAX_SHOWN_CHARACTERS:
        return dict(arguments), False
    return {name: _cut(value) for name, value in arguments.items()}, True


def _cut(value: Any) -> JsonValue:
    text = value if isinstance(value, str) else json.dumps(value)
    more = len(text) - SHOWN_VALUE_CHARACTERS
    return value if more <= 0 else f"{text[:SHOWN_VALUE_CHARACTERS]}… ({more:,} more characters)"


def refusal(approval_id: str, decision: str, told: Sequence[str]) -> ApprovalRefused:
    """Why an answer was not taken, from what answer.lua says."""
    match told:
        case ["settled", "withdrawn", job_id]:
            return AnsweredAlready(f"Job {job_id} has ended, so {approval_id} needs no answer.")
        case ["settled", earlier, job_id]:
            return AnsweredAlready(
                f"{approval_id} of job {job_id} was answered already: {earlier}."
            )
        case ["not allowed", allowed]:
            return DecisionNotAllowed(
                f"{decision} is not allowed for {approval_id}; allowed are {allowed}."
            )
    return UnknownApproval(f"There is no approval {approval_id}.")


def waiting_words(tools: list[str]) -> str:
    """What a job waits for, in a person's words."""
    return f"approval of {', '.join(dict.fromkeys(tools))}"
