"""What a remote agent has answered: texts, structured parts, files and patches.

All of it is data of a stranger. An address of a file is followed at the agent's own origin only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.types import Message, Part, StreamResponse, Task
from google.protobuf.json_format import MessageToDict
from pydantic import JsonValue

from fanout.orchestrator.deep_agent import OutputMismatch, OutputSchema
from fanout.workers.agent.remote.received_files import ReceivedFile

MAX_TEXT_CHARACTERS = 200_000
"""Of a reply: some fifty thousand tokens, more than another model would read of it."""
CONFIRMATION = "adk_request_confirmation"
"""The function by which agents of ADK, and fanout's own service, ask for a confirmation."""
PATCH_TYPES = frozenset({"text/x-diff", "text/x-patch", "text/diff", "application/x-patch"})


@dataclass(frozen=True)
class Link:
    """A file that is given by its address."""

    url: str
    name: str
    media_type: str


@dataclass
class Reply:
    """What a message or the artifacts of a task hold."""

    texts: list[str] = field(default_factory=list)
    outputs: list[JsonValue] = field(default_factory=list)
    """The structured parts."""
    files: list[ReceivedFile] = field(default_factory=list)
    patches: list[bytes] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """What could not be taken, and why; no content."""

    @property
    def confirmations(self) -> tuple[str, ...]:
        """The ids of the calls for which an agent of ADK asks a confirmation."""
        calls = (one for one in self.outputs if isinstance(one, dict))
        named = (one.get("id") for one in calls if one.get("name") == CONFIRMATION)
        return tuple(one for one in named if isinstance(one, str))

    @property
    def text(self) -> str:
        """The texts, without repetitions."""
        text = "\n\n".join(dict.fromkeys(one for one in self.texts if one.strip()))
        return text[:MAX_TEXT_CHARACTERS]

    def add(self, parts: Iterable[Part], name: str = "") -> None:
        """Add the parts of a message or an artifact.

        Args:
            parts: The parts.
            name: The artifact's name, for a file without one.
        """
        texts = []
        for part in parts:
            kind = part.WhichOneof("content")
            if kind == "data":
                self.outputs.append(MessageToDict(part.data))
            elif kind == "url":
                self.links.append(Link(part.url, part.filename or name, part.media_type))
            elif kind == "text" and not part.filename and part.media_type not in PATCH_TYPES:
                texts.append(part.text)
            elif kind in {"raw", "text"}:
                content = part.raw if kind == "raw" else part.text.encode()
                self.add_file(part.filename or name, part.media_type, content)
        if texts:
            self.texts.append("".join(texts))

    def add_file(self, path: str, media_type: str, content: bytes) -> None:
        """Add a file, or a patch."""
        if media_type in PATCH_TYPES:
            self.patches.append(content)
        elif path:
            self.files.append(ReceivedFile(path, content))
        else:
            self.ignored.append("a file without a name")


def reply_of(task: Task) -> Reply:
    """Return what a task whose work has stopped holds.

    A question is its state's message; an answer is its artifacts, and that message.
    """
    reply = Reply()
    for artifact in task.artifacts:
        reply.add(artifact.parts, artifact.name)
    reply.add(task.status.message.parts)
    return reply


def question_of(task: Task) -> Reply:
    """Return what a task asks a person; its structured parts are in its text too."""
    reply = Reply()
    reply.add(task.status.message.parts)
    reply.texts += [json.dumps(one) for one in reply.outputs]
    return reply


def reply_of_message(message: Message) -> Reply:
    """Return what an agent answered that made no task of the message."""
    reply = Reply()
    reply.add(message.parts)
    return reply


def progress_text(update: StreamResponse) -> str:
    """Return the text of an update of a task, to show it."""
    parts: Sequence[Part] = ()
    if update.HasField("status_update"):
        parts = update.status_update.status.message.parts
    elif update.HasField("artifact_update"):
        parts = update.artifact_update.artifact.parts
    return "".join(part.text for part in parts if not part.filename)


def fitting(schema: Mapping[str, Any] | None, outputs: Sequence[JsonValue]) -> JsonValue:
    """Return the last structured part that fits a schema; None if none does, or without a schema.

    It may take seconds, so call it in a thread.
    """
    for output in reversed(outputs if schema is not None else ()):
        with contextlib.suppress(OutputMismatch, ValueError):
            value: JsonValue = OutputSchema(schema or {}).parse(json.dumps(output))
            return value
    return None
