"""The HOME of a coding agent as a blob: its sessions, for a job that continues this one.

Only sandboxes ever unpack it. What a program can fetch again is left out.
"""

from __future__ import annotations

import structlog

from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.workspace.blobs import BlobStore

from ...sandbox import Command, Sandbox

log = structlog.get_logger(__name__)

HOME = "agent_home"
"""The agent's HOME, below the folder that the job's next attempt has too."""
ARCHIVE = "agent_home.tar.gz"
"""Where it is packed and unpacked, beside it."""
MAX_BYTES = 8 << 20
"""The largest archive: hundreds of long sessions. A larger one is not kept."""
SECONDS = 20.0
"""The time to pack or unpack it."""
PACK = (
    "tar -czf - --exclude=./.cache --exclude=./.npm --exclude=node_modules -C {home} . 2>/dev/null"
    f" | head -c {MAX_BYTES + 1} > {{archive}}"
)
"""Packs it, without what can be fetched again."""
UNPACK = "mkdir -p {home} && tar -xzf {archive} -C {home}; rm -f {archive}"
"""Unpacks it."""


def home_of(sandbox: Sandbox) -> str:
    """Return the path of the agent's HOME in an open sandbox."""
    return f"{sandbox.kept_folder}/{HOME}"


async def keep_home(sandbox: Sandbox, blobs: BlobStore) -> str:
    """Store the agent's HOME; return the blob, or nothing if it is too large or unreadable.

    Raises:
        SandboxFailure: The sandbox failed.
    """
    archive = f"{sandbox.kept_folder}/{ARCHIVE}"
    await _run(sandbox, PACK.format(home=home_of(sandbox), archive=archive))
    try:
        content = await sandbox.read_bytes(archive, MAX_BYTES + 1)
        await sandbox.delete(archive)
    except OSError:
        return ""
    if not content or len(content) > MAX_BYTES:
        return ""
    try:
        return await blobs.put(content)
    except JobFailure as error:  # a job that continues is told of this one then
        log.warning("sessions of a coding agent not kept", error=type(error).__name__)
        return ""


async def restore_home(sandbox: Sandbox, blobs: BlobStore, blob: str) -> None:
    """Put an earlier job's HOME into a sandbox; nothing is done if it is not stored any more.

    Raises:
        SandboxFailure: The sandbox failed.
    """
    archive = f"{sandbox.kept_folder}/{ARCHIVE}"
    try:
        await sandbox.write_bytes(archive, await blobs.get(blob))
    except (OSError, JobFailure) as error:
        log.warning("sessions of a coding agent not restored", error=type(error).__name__)
        return
    await _run(sandbox, UNPACK.format(home=home_of(sandbox), archive=archive))


async def _run(sandbox: Sandbox, command: str) -> None:
    await sandbox.run(Command(argv=command, timeout_seconds=SECONDS, max_output_bytes=1024))
