"""What a remote agent has answered: texts, structured parts, files and patches.

All of it is data of a stranger. Nothing in it is followed: an address of a file is not fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from a2a.types import Message, Part, StreamResponse, Task
from google.protobuf.json_format import MessageToDict
from pydantic import JsonValue

from fanout.workers.agent.remote.received_files import ReceivedFile

MAX_TEXT_CHARACTERS = 200_000
"""Of a reply: some fifty thousand tokens, more than another model would read of it."""
PATCH_TYPES = frozenset({"text/x-diff", "text/x-patch", "text/diff", "application/x-patch"})


@dataclass
class Reply:
    """What a message or the artifacts of a task hold."""

    texts: list[str] = field(default_factory=list)
    output: JsonValue = None
    """The last structured part."""
    files: list[ReceivedFile] = field(default_factory=list)
    patches: list[bytes] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """What could not be taken, and why; no content."""

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
                self.output = MessageToDict(part.data)
            elif kind == "url":
                self.ignored.append("a file by its address, which is not fetched")
            elif kind == "text" and not part.filename and part.media_type not in PATCH_TYPES:
                texts.append(part.text)
            elif kind in {"raw", "text"}:
                self._add_file(part, name)
        if texts:
            self.texts.append("".join(texts))

    def _add_file(self, part: Part, name: str) -> None:
        content = part.raw if part.WhichOneof("content") == "raw" else part.text.encode()
        path = part.filename or name
        if part.media_type in PATCH_TYPES:
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


def question_of(task: Task) -> str:
    """Return what a task asks a person."""
    reply = Reply()
    reply.add(task.status.message.parts)
    shown = [] if reply.output is None else [json.dumps(reply.output)]
    return "\n\n".join([*filter(None, [reply.text]), *shown])[:MAX_TEXT_CHARACTERS]


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
