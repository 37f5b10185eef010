"""What is sent to a remote agent: its task, answers of people, and files of the job."""

from __future__ import annotations

import json
import mimetypes
import posixpath
from dataclasses import dataclass

from a2a.helpers import new_data_part
from a2a.types import Message, Part, Role
from wcmatch import glob

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import RemoteAgentDefinition
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.remote_agents import RemoteConnection
from fanout.workers.agent.remote.conversation import Turn
from fanout.workers.agent.remote.reply import CONFIRMATION
from fanout.workers.sandbox import WORKSPACE, Sandbox

APPROVED = "Yes, approved."
"""The answer of a person who approves what the agent asks; it is given to any agent."""
REJECTED = "No, rejected."
"""The same for one who does not: the agent may still end its task in order."""
FITS_SCHEMA = "Answer with a structured data part, or with JSON only, that fits this JSON Schema:"
"""The protocol has no field for it."""

MAX_SENT_FILES = 5_000
"""Of one task: more are a repository, which is given by its address."""
WALK_SECONDS = 30.0
"""For listing the workspace: some hundred thousand files."""
MAX_WALKED = 100_000
"""Files of the workspace among which those to send are searched."""


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


def message_of(turn: Turn, files: SentFiles) -> Message:
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
        types = media_types_of(path, content)
        accepted = next((one for one in types if remote.accepts(one)), None)
        if accepted is not None:
            parts.append(Part(raw=content, filename=path, media_type=accepted))
    return SentFiles(tuple(parts), len(chosen) - len(parts))


def media_types_of(path: str, content: bytes) -> tuple[str, ...]:
    """Return the media types as which a file may be sent: by its name, then by its content."""
    guessed, encoding = mimetypes.guess_type(path)
    named = (guessed,) if guessed and not encoding else ()
    try:
        content.decode()
    except UnicodeDecodeError:
        return (*named, "application/octet-stream")
    return (*named, "application/octet-stream") if b"\0" in content else (*named, "text/plain")
