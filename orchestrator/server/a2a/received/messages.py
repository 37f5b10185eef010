"""Messages of clients: what makes a new job, and what answers one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from a2a.types import Message, Part
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from pydantic import ValidationError

from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.server.a2a.cards import DEFAULT_AGENT, INPUT_MODES
from fanout.orchestrator.server.a2a.received.decisions import is_confirmation
from fanout.orchestrator.server.a2a.shown.parts import plain, texts_in
from fanout.orchestrator.server.a2a.shown.records import CONTEXT_LABEL, DIGEST_LABEL, MESSAGE_LABEL
from fanout.orchestrator.server.access.callers import Caller
from fanout.orchestrator.server.http.models import JobRequest

MAX_ID_CHARACTERS = 200
"""Of a message's or a context's id, which clients make: several times a UUID."""
OWN = frozenset({"description", "context", "continues", "at", "idempotency_key"})
"""Fields of a job that a message has in its own form."""
PREFIX = "fanout."
"""Of metadata that sets a field of the job, as `POST /v1/jobs` names it: `fanout.agent`."""


@dataclass(frozen=True)
class Place:
    """Where a new task belongs."""

    context_id: str
    continues: str | None
    """The ended job whose conversation it goes on with."""
    agent: str | None
    """The agent whose card the client uses."""


def task_id_of(caller: Caller, message: Message) -> str:
    """Return the id of the task of a message: a message that is sent again is the same task.

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


def digest_of(message: Message) -> str:
    """Return the fingerprint of a message, to tell a repetition from another one of its id."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32]


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
        kind = part.media_type.partition(";")[0].strip().lower()
        if kind and not any(fnmatchcase(kind, mode) for mode in INPUT_MODES):
            raise ContentTypeNotSupportedError(
                f"The media type {kind[:100]} is not in the card: known are "
                f"{', '.join(INPUT_MODES)}. A file of another type is application/octet-stream."
            )


def text_of(message: Message) -> str:
    """Return the texts of a message."""
    return "\n\n".join(part.text for part in message.parts if part.text.strip())


def text_for_agent(message: Message) -> str:
    """Return what a message to an existing task says to its agent: texts, and data as JSON."""
    data = _data(part for part in message.parts if not is_confirmation(part))
    return "\n\n".join(filter(None, (text_of(message), data)))


def specification(
    job_id: str, message: Message, metadata: Mapping[str, Any], place: Place
) -> JobSpec:
    """Return the job of a message.

    Args:
        job_id: The id of its task.
        message: The message: its texts are the task, its data the context.
        metadata: That of the request; the message's own goes before it.
        place: Where the task belongs.

    Raises:
        InvalidParamsError: A field of the job is wrong, or there is no text.
    """
    text = text_of(message)
    if not text.strip():
        raise InvalidParamsError("A new task needs a text part that says what to do.")
    fields = _fields(message, metadata)
    if place.agent is not None:
        if fields.setdefault("agent", place.agent) != place.agent:
            raise InvalidParamsError(f"This address is that of {place.agent}: name no other agent.")
    elif place.continues is None:
        fields.setdefault("agent", DEFAULT_AGENT)
    labels = fields.pop("labels", None) or {}
    own = {
        CONTEXT_LABEL: place.context_id,
        MESSAGE_LABEL: message.message_id,
        DIGEST_LABEL: digest_of(message),
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
    fields = texts_in({**metadata, **plain(message.metadata)}, PREFIX)
    known = (JobRequest.model_fields.keys() & JobSpec.model_fields.keys()) - OWN
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise InvalidParamsError(
            f"The metadata {PREFIX}{unknown[0][:50]} sets nothing: known are {PREFIX}"
            f"{f', {PREFIX}'.join(sorted(known))}."
        )
    return fields


def _data(parts: Iterable[Part]) -> str:
    """Return the data of a message's parts as text for the agent."""
    found = [plain(part.data) for part in parts if part.HasField("data")]
    return "\n\n".join(json.dumps(one, indent=2, ensure_ascii=False) for one in found)


def _what_is_wrong(failure: ValidationError | TypeError) -> str:
    """Return what is wrong, without the value: it may be a prompt."""
    if isinstance(failure, TypeError):
        return f"{PREFIX}labels is an object of texts."
    error = failure.errors()[0]
    at = ".".join(map(str, error["loc"]))
    return f"{PREFIX}{at}: {error['msg']}."
