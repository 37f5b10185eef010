"""Files and patches of a remote agent, put into the sandbox of its job.

Its paths are those of a stranger: one outside of the workspace, in `.git`, or through a link is
refused, and then nothing is written.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from fanout.orchestrator.jobs.failures import AgentFailed
from fanout.workers.sandbox import WORKSPACE, Command, Sandbox

MAX_FILES = 10_000
"""In one answer; each costs the sandbox an operation."""
MAX_PATH_CHARACTERS = 1_000
"""Longer than any path that a person made."""
PATCH_SECONDS = 120.0
"""For a patch of the largest answer."""


@dataclass(frozen=True)
class ReceivedFile:
    """A file that a remote agent sent."""

    path: str
    """As the agent named it."""
    content: bytes


async def put_files(
    sandbox: Sandbox, patches: Sequence[bytes], files: Sequence[ReceivedFile]
) -> None:
    """Apply the patches to the workspace, then write the files; doing it again changes nothing.

    Raises:
        AgentFailed: A path is not one of the workspace, a patch does not fit, or there is no space.
        SandboxFailure: The sandbox failed.
    """
    if len(files) > MAX_FILES:
        raise AgentFailed(f"The remote agent sent {len(files):,} files; {MAX_FILES:,} are allowed.")
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
