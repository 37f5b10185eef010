"""The meaning of clients' messages for jobs: a new job, or an answer to one.

The contexts of new tasks are chains of jobs, each of which continues the conversation and the files
of another. Decisions about calls come as ADK's confirmations or as those of `hitl/v1`; a text is
never a decision.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from a2a.types import Message, Part
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from pydantic import JsonValue, ValidationError

from ...approvals import DECISIONS, Decision
from ...client.job_pages import JobFilter
from ...jobs.failures import UnknownJob
from ...jobs.spec import JobSpec
from ...jobs.state import TERMINAL_STATES, JobRecord
from ...server.access.callers import Caller
from ...server.http.models import JobRequest
from ...server.owned_jobs import OwnedJobs
from .approval_requests import (
    CONFIRMATION,
    MalformedAnswer,
    read_response,
)
from .cards import DEFAULT_AGENT, INPUT_MODES
from .protocol import (
    CONTEXT_LABEL,
    DIGEST_LABEL,
    MESSAGE_LABEL,
    collect_texts,
    job_context,
    plain,
)

MAX_FILES = 1_000
"""The most files of one message: more are sent as an archive to `/v1/snapshots`."""
MAX_ID_CHARACTERS = 200
"""The longest id of a message or a context, which clients make: several times a UUID."""
OWN = frozenset({"description", "context", "continues", "at", "idempotency_key"})
"""The fields of a job that a message has in its own form."""
SCRIPT = frozenset({"script", "inputs"})
"""The metadata of a script: its text, and its `inputs`."""
PREFIX = "fanout."
"""The prefix of metadata that sets a field of the job, as `POST /v1/jobs` names it: `fanout.agent`.
"""


@dataclass(frozen=True)
class CallDecision:
    """A decision about one call."""

    approval_id: str
    decision: Decision
    message: str = ""
    arguments: dict[str, JsonValue] | None = None
    response: JsonValue = None


def read_decisions(message: Message, awaited: Collection[str]) -> list[CallDecision]:
    """Return the decisions in a message; none of them may be about another call.

    Args:
        message: The client's message.
        awaited: The ids of the approvals for which the task waits.

    Raises:
        InvalidParamsError: An id is unknown or occurs twice, or an answer is not understood. With
            `hitl/v1`, also when one is missing: a missing one never counts as approved.
    """
    try:
        typed = read_response(message)
    except MalformedAnswer as failure:
        raise InvalidParamsError(str(failure)) from None
    if typed is not None:
        answers = [
            CallDecision(
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


async def give_decisions(jobs: OwnedJobs, answers: Collection[CallDecision]) -> None:
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


def _confirmations(message: Message) -> Iterator[CallDecision]:
    for part in message.parts:
        if is_confirmation(part):
            yield _confirmation(plain(part.data))


def _confirmation(data: dict[str, Any]) -> CallDecision:
    """Return the decision of ADK's confirmation.

    Its payload may hold fanout's `decision` next to `confirmed`, with its `arguments`, `response`
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
    return CallDecision(
        approval_id,
        decision,
        message=message,
        arguments=arguments if decision == "edit" else None,
        response=given.get("response") if decision == "respond" else None,
    )


def _unwrapped(response: Any) -> dict[str, Any]:
    """Return the answer; some clients of ADK send it as a text inside `response`."""
    inner = response.get("response") if isinstance(response, dict) else None
    if isinstance(inner, str) and "confirmed" not in response:
        try:
            response = json.loads(inner)
        except (ValueError, RecursionError):
            response = None
    return response if isinstance(response, dict) else {}


def read_files(message: Message) -> dict[str, bytes]:
    """Return the contents of the files of a message, by path.

    A file without a name gets one. Whether paths stay in the workspace is checked where the files
    are written.

    Raises:
        InvalidParamsError: Two files have one name, or there are too many.
    """
    found: dict[str, bytes] = {}
    for number, part in enumerate(message.parts, 1):
        if not part.HasField("raw"):
            continue
        ending = mimetypes.guess_extension(part.media_type) or "" if part.media_type else ""
        name = part.filename or f"file-{number}{ending}"
        if name in found:
            raise InvalidParamsError("Two files of the message have the same name.")
        found[name] = part.raw
    if len(found) > MAX_FILES:
        raise InvalidParamsError(f"A message has at most {MAX_FILES:,} files.")
    return found


@dataclass(frozen=True)
class TaskPlace:
    """The place of a new task."""

    context_id: str
    continues: str | None
    """The ended job whose conversation it continues."""
    agent: str | None
    """The agent whose card the client uses."""


@dataclass(frozen=True)
class MessageScript:
    """A script in the metadata of a message."""

    source: str
    inputs: dict[str, JsonValue]


def make_task_id(caller: Caller, message: Message) -> str:
    """Return the id of the task of a message: a repeated message is the same task.

    Raises:
        InvalidParamsError: The message has no usable id.
    """
    for name, value in (("messageId", message.message_id), ("contextId", message.context_id)):
        if len(value) > MAX_ID_CHARACTERS or not value.isprintable():
            raise InvalidParamsError(
                f"{name} has at most {MAX_ID_CHARACTERS} printable characters, such as a UUID."
            )
    if not message.message_id:
        raise InvalidParamsError("A message needs a messageId: repeated, it is the same task.")
    owner, tenant = caller.submits_as
    named = json.dumps([tenant, owner, message.message_id])
    return f"a2a-{hashlib.sha256(named.encode()).hexdigest()[:40]}"


def message_digest(message: Message) -> str:
    """Return the fingerprint of a message, which distinguishes it from repetitions of others."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32]


def media_kind(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def check_parts(message: Message) -> None:
    """Check that the parts of a message are of kinds that agents get.

    Raises:
        ContentTypeNotSupportedError: One is the address of a file, or its media type is not in the
            card.
    """
    for part in message.parts:
        if part.url:
            raise ContentTypeNotSupportedError(
                "Files are sent as raw parts: the service fetches no addresses."
            )
        kind = media_kind(part.media_type)
        if kind and not any(fnmatchcase(kind, mode) for mode in INPUT_MODES):
            raise ContentTypeNotSupportedError(
                f"The media type {kind[:100]} is not in the card: known are "
                f"{', '.join(INPUT_MODES)}. A file of another type is application/octet-stream."
            )


def join_texts(message: Message) -> str:
    """Return the texts of a message."""
    return "\n\n".join(part.text for part in message.parts if part.text.strip())


def text_for_agent(message: Message) -> str:
    """Return the text of a message to an existing task for its agent: texts, and data as JSON."""
    data = _data(part for part in message.parts if not is_confirmation(part))
    return "\n\n".join(filter(None, (join_texts(message), data)))


def specification(
    job_id: str, message: Message, metadata: Mapping[str, Any], place: TaskPlace
) -> JobSpec:
    """Return the job of a message.

    Args:
        job_id: The id of its task.
        message: The message: its texts are the task, its data the context.
        metadata: The metadata of the request; the message's own has priority.
        place: The place of the task.

    Raises:
        InvalidParamsError: A field of the job is wrong, or there is no text.
    """
    text = join_texts(message)
    if not text.strip():
        raise InvalidParamsError("A new task needs a text part with the task.")
    fields = _fields(message, metadata)
    if place.agent is not None:
        if fields.setdefault("agent", place.agent) != place.agent:
            raise InvalidParamsError(f"This is the address of {place.agent}: name no other agent.")
    elif place.continues is None:
        fields.setdefault("agent", DEFAULT_AGENT)
    labels = fields.pop("labels", None) or {}
    own = {
        CONTEXT_LABEL: place.context_id,
        MESSAGE_LABEL: message.message_id,
        DIGEST_LABEL: message_digest(message),
    }
    try:
        request = JobRequest.model_validate({
            **fields,
            "description": text,
            "labels": {**labels, **own},
            **({"context": data} if (data := _data(message.parts)) else {}),
            **({"continues": place.continues} if place.continues else {}),
        })  # fmt: skip
    except (ValidationError, TypeError) as failure:
        raise InvalidParamsError(_what_is_wrong(failure)) from None
    return request.spec(id=job_id)


def _fields(message: Message, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the job that the metadata sets."""
    fields = _metadata(message, metadata)
    known = (JobRequest.model_fields.keys() & JobSpec.model_fields.keys()) - OWN
    unknown = sorted(fields.keys() - known - SCRIPT)
    if unknown:
        raise InvalidParamsError(
            f"The metadata {PREFIX}{unknown[0][:50]} sets nothing: known are {PREFIX}"
            f"{f', {PREFIX}'.join(sorted(known | SCRIPT))}."
        )
    return {name: value for name, value in fields.items() if name not in SCRIPT}


def read_script(message: Message, metadata: Mapping[str, Any]) -> MessageScript | None:
    """Return the script that the metadata has; None: the task is for an agent.

    Raises:
        InvalidParamsError: It is no text, or its inputs are no object.
    """
    fields = _metadata(message, metadata)
    source, inputs = fields.get("script"), fields.get("inputs")
    if source is None and inputs is None:
        return None
    if not isinstance(source, str) or not source.strip():
        raise InvalidParamsError(f"{PREFIX}script is the text of a script.")
    if inputs is not None and not isinstance(inputs, dict):
        raise InvalidParamsError(f"{PREFIX}inputs is an object with the script's inputs.")
    return MessageScript(source, inputs or {})


def _metadata(message: Message, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return collect_texts({**metadata, **plain(message.metadata)}, PREFIX)


def _data(parts: Iterable[Part]) -> str:
    """Return the data of a message's parts as text for the agent."""
    found = [plain(part.data) for part in parts if part.HasField("data")]
    return "\n\n".join(json.dumps(one, indent=2, ensure_ascii=False) for one in found)


def _what_is_wrong(failure: ValidationError | TypeError) -> str:
    """Return the error without the value, which may be a prompt."""
    if isinstance(failure, TypeError):
        return f"{PREFIX}labels is an object of texts."
    error = failure.errors()[0]
    at = ".".join(map(str, error["loc"]))
    return f"{PREFIX}{at}: {error['msg']}."


async def find_place(
    jobs: OwnedJobs, message: Message, job_id: str, agent: str | None
) -> TaskPlace:
    """Return the place of a message's new task.

    In a known context it continues the task that the message refers to, else the one that has ended
    last. It does not wait for running tasks, so tasks of one context may run at the same time. An
    unknown context begins with this message.

    Args:
        jobs: The caller's jobs.
        message: The message.
        job_id: The id of its task, which names a new context.
        agent: The agent whose card the client uses.

    Raises:
        InvalidParamsError: The message refers to a task of another context, or to one that runs.
        UnknownJob: It refers to a task that the caller does not have.
    """
    if message.reference_task_ids:
        earlier = await jobs.get(message.reference_task_ids[0])
        context = job_context(earlier)
        if message.context_id and message.context_id != context:
            raise InvalidParamsError("The referenced task belongs to another context.")
        if not earlier.state.is_terminal:
            raise InvalidParamsError(
                "The referenced task has not ended: wait for it, or cancel it."
            )
        return TaskPlace(context, earlier.id, agent)
    if not message.context_id:
        return TaskPlace(job_id, None, agent)
    newest = await _newest_ended(jobs, message.context_id)
    return TaskPlace(message.context_id, newest.id if newest else None, agent)


async def _newest_ended(jobs: OwnedJobs, context_id: str) -> JobRecord | None:
    """Return the last submitted job of a context among those that have ended."""
    wanted = JobFilter(states=TERMINAL_STATES, labels={CONTEXT_LABEL: context_id}, roots_only=True)
    before: int | None = None
    while True:
        page = await jobs.page(wanted, before, 1)
        if page.records:
            return page.records[0]
        if page.next is None:
            return await _named_by(jobs, context_id)
        before = page.next


async def _named_by(jobs: OwnedJobs, context_id: str) -> JobRecord | None:
    """Return the job whose id is that of the context: one from another interface."""
    try:
        found = await jobs.get(context_id)
    except UnknownJob:
        return None
    return found if found.state.is_terminal and CONTEXT_LABEL not in found.labels else None
