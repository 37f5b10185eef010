"""What is sent to a remote agent, and what it has answered: texts, data, files and patches.

All that it answers is data of a stranger. An address of a file is followed at the agent's own
origin only. A path outside of the workspace, in `.git`, or through a link is refused, and then
nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.helpers import new_data_part
from a2a.types import Message, Part, Role, StreamResponse, Task
from google.protobuf.json_format import MessageToDict
from pydantic import JsonValue
from wcmatch import glob

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import RemoteAgentDefinition
from fanout.orchestrator.deep_agent import OutputMismatch, OutputSchema
from fanout.orchestrator.extras import RemoteConnection
from fanout.orchestrator.jobs.failures import AgentFailed, InvalidJob
from fanout.orchestrator.jobs.spec import JobSpec

from ...sandbox import WORKSPACE, Command, Sandbox
from .conversation import Turn

MAX_RECEIVED_FILES = 10_000
"""The most files in one answer; each costs the sandbox an operation."""
MAX_PATH_CHARACTERS = 1_000
"""Longer than any path that a person made."""
PATCH_SECONDS = 120.0
"""The time for a patch of the largest answer."""
MAX_TEXT_CHARACTERS = 200_000
"""The longest text of a reply: some fifty thousand tokens, more than another model would read of
it."""
CONFIRMATION = "adk_request_confirmation"
"""The function by which agents of ADK, and fanout's own service, ask for a confirmation."""
PATCH_TYPES = frozenset({"text/x-diff", "text/x-patch", "text/diff", "application/x-patch"})
APPROVED = "Yes, approved."
"""The answer of a person who approves what the agent asks; it is given to any agent."""
REJECTED = "No, rejected."
"""The same for one who does not: the agent may still end its task in order."""
FITS_SCHEMA = "Answer with a structured data part, or with JSON only, that fits this JSON Schema:"
"""The protocol has no field for it."""

MAX_SENT_FILES = 5_000
"""The most files of one task: more are a repository, which is given by its address."""
WALK_SECONDS = 30.0
"""The time for listing the workspace: some hundred thousand files."""
MAX_WALKED = 100_000
"""Files of the workspace among which those to send are searched."""


@dataclass(frozen=True)
class ReceivedFile:
    """A file that a remote agent sent."""

    path: str
    """The path in the agent's form."""
    content: bytes


async def put_files(
    sandbox: Sandbox, patches: Sequence[bytes], files: Sequence[ReceivedFile]
) -> None:
    """Apply the patches to the workspace, then write the files; doing it again changes nothing.

    Raises:
        AgentFailed: A path is not one of the workspace, a patch does not fit, or there is no space.
        SandboxFailure: The sandbox failed.
    """
    if len(files) > MAX_RECEIVED_FILES:
        allowed = f"{MAX_RECEIVED_FILES:,} are allowed"
        raise AgentFailed(f"The remote agent sent {len(files):,} files; {allowed}.")
    targets = {workspace_path(file.path): file.content for file in files}
    for patch in patches:
        await _apply(sandbox, patch)
    folders: set[str] = set()
    for path in targets:
        await _check_folders(sandbox, posixpath.dirname(path), folders)
    for path, content in targets.items():
        try:
            await sandbox.write_bytes(path, content)
        except OSError as error:
            kind = type(error).__name__
            raise AgentFailed(
                f"A file of the remote agent cannot be written ({kind}, errno {error.errno})."
            ) from error


def workspace_path(name: str) -> str:
    """Return the path in the workspace of a file that a remote agent named.

    Raises:
        AgentFailed: It is outside of the workspace, in `.git`, or no path.
    """
    relative = name.removeprefix(f"{WORKSPACE}/")
    parts = relative.split("/")
    if (
        not relative.isprintable()
        or len(relative) > MAX_PATH_CHARACTERS
        or "\\" in relative
        or {"", ".", ".."}.intersection(parts)
        or any(part.lower() == ".git" for part in parts)
    ):
        raise AgentFailed(
            "The remote agent sent a file whose path is not one of the workspace; none was written."
        )
    return posixpath.join(WORKSPACE, relative)


async def _check_folders(sandbox: Sandbox, folder: str, known: set[str]) -> None:
    """Check that a folder is one, or is missing, and no link leads to it.

    Raises:
        AgentFailed: A link or a file is in its place.
    """
    if folder == WORKSPACE or folder in known:
        return
    await _check_folders(sandbox, posixpath.dirname(folder), known)
    try:
        entry = await sandbox.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if entry.kind != "directory":
        raise AgentFailed("The remote agent sent a file into a folder that is none, or is a link.")
    known.add(folder)


async def _apply(sandbox: Sandbox, patch: bytes) -> None:
    """Apply a patch, unless it is applied already.

    Raises:
        AgentFailed: It does not fit the files.
        SandboxFailure: The sandbox failed.
    """
    for options in (("--check", "--reverse"), ()):
        command = Command(
            argv=("git", "apply", "--whitespace=nowarn", *options, "-"),
            env={"GIT_CEILING_DIRECTORIES": "/", "LC_ALL": "C"},
            stdin=patch,
            timeout_seconds=PATCH_SECONDS,
        )
        ended = await sandbox.run(command)
        if ended.exit_code == 0:
            return
    raise AgentFailed(
        "The remote agent's patch does not fit the files of the job, or the image has no git: "
        f"git apply ended with exit code {ended.exit_code}."
    )


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


def read_reply(task: Task) -> Reply:
    """Return what a task whose work has stopped holds.

    A question is its state's message; an answer is its artifacts, and that message.
    """
    reply = Reply()
    for artifact in task.artifacts:
        reply.add(artifact.parts, artifact.name)
    reply.add(task.status.message.parts)
    return reply


def read_question(task: Task) -> Reply:
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
    end = ""
    if update.HasField("status_update"):
        parts, end = update.status_update.status.message.parts, "\n"
    elif update.HasField("artifact_update"):
        parts = update.artifact_update.artifact.parts
    text = "".join(part.text for part in parts if not part.filename)
    return text + end if text else ""


def fitting(schema: Mapping[str, Any] | None, outputs: Sequence[JsonValue]) -> JsonValue:
    """Return the last structured part that fits a schema; None if none does, or without a schema.

    It may take seconds, so call it in a thread.
    """
    for output in reversed(outputs if schema is not None else ()):
        with contextlib.suppress(OutputMismatch, ValueError):
            value: JsonValue = OutputSchema(schema or {}).parse(json.dumps(output))
            return value
    return None


def task_text(spec: JobSpec, schema: object) -> str:
    """Return the job's first message: its description, its context, and the form of the answer."""
    text = spec.description
    if spec.context:
        text += f"\n\n<context>\n{spec.context}\n</context>"
    if schema is not None:
        text += f"\n\n{FITS_SCHEMA}\n{json.dumps(schema)}"
    return text


def answer_text(answer: ApprovalAnswer) -> str:
    """Return a person's answer as the agent gets it."""
    if answer.decision == "respond":
        given = answer.response
        text = given if isinstance(given, str) else json.dumps(given)
    else:
        text = APPROVED if answer.decision == "approve" else REJECTED
    return f"{text}\n\n{answer.message}" if answer.message else text


@dataclass(frozen=True)
class SentFiles:
    """The files that are sent with a task."""

    parts: tuple[Part, ...] = ()
    not_accepted: int = 0
    """How many were left out because the agent does not take their type."""


def make_message(turn: Turn, files: SentFiles) -> Message:
    """Return the message of a turn; a repeated one is the same."""
    note = turn.note
    asked = note.confirmations if note.is_confirmed is not None else ()
    return Message(
        message_id=note.message,
        task_id=note.task,
        context_id=note.context,
        role=Role.ROLE_USER,
        parts=[
            Part(text=turn.text),
            *(_confirmation(call, is_confirmed=bool(note.is_confirmed)) for call in asked),
            *files.parts,
        ],
    )


def _confirmation(call_id: str, *, is_confirmed: bool) -> Part:
    """Return the answer to a call that an agent of ADK asks to confirm."""
    answer = {"id": call_id, "name": CONFIRMATION, "response": {"confirmed": is_confirmed}}
    part = new_data_part(answer)
    part.metadata.update({"adk_type": "function_response"})
    return part


async def files_to_send(
    sandbox: Sandbox, definition: RemoteAgentDefinition, remote: RemoteConnection
) -> SentFiles:
    """Return the files that the definition sends, of the types that the agent takes.

    Raises:
        InvalidJob: They are too many, or too large together.
        SandboxFailure: The sandbox failed.
    """
    if definition.files == "none":
        return SentFiles()
    patterns = ["**"] if definition.files == "all" else list(definition.files)
    walk = await sandbox.walk(WORKSPACE, max_entries=MAX_WALKED, timeout_seconds=WALK_SECONDS)
    flags = glob.GLOBSTAR | glob.BRACE | glob.DOTGLOB
    paths = {
        posixpath.relpath(entry.path, WORKSPACE): entry.size_bytes
        for entry in walk.entries
        if entry.kind == "file"
    }
    chosen = [path for path in paths if glob.globmatch(path, patterns, flags=flags)]
    size = sum(paths[path] for path in chosen)
    if size > definition.max_bytes or len(chosen) > MAX_SENT_FILES or not walk.complete:
        raise InvalidJob(
            f"{len(chosen):,} files of {size:,} bytes would be sent to the remote agent, which is "
            f"above a2a.max_bytes ({definition.max_bytes:,}) or {MAX_SENT_FILES:,} files: name "
            "fewer in a2a.files of its definition."
        )
    parts: list[Part] = []
    for path in chosen:
        content = await sandbox.read_bytes(posixpath.join(WORKSPACE, path), definition.max_bytes)
        types = guess_media_types(path, content)
        accepted = next((one for one in types if remote.accepts(one)), None)
        if accepted is not None:
            parts.append(Part(raw=content, filename=path, media_type=accepted))
    return SentFiles(tuple(parts), len(chosen) - len(parts))


def guess_media_types(path: str, content: bytes) -> tuple[str, ...]:
    """Return the media types as which a file may be sent: by its name, then by its content."""
    guessed, encoding = mimetypes.guess_type(path)
    named = (guessed,) if guessed and not encoding else ()
    try:
        content.decode()
    except UnicodeDecodeError:
        return (*named, "application/octet-stream")
    return (*named, "application/octet-stream") if b"\0" in content else (*named, "text/plain")
