"""The workspace of an open sandbox as the target folder of a merge.

A merge blocks, the operations of a sandbox are coroutines: the merge runs in a thread of `MERGING`
and each of its steps waits for the event loop. Paths that lead out of the workspace are rejected,
as in a parent's workspace.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fanout.orchestrator.cancellation import ended
from fanout.orchestrator.deep_agent import Entry
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.path_text import os_path, path_text
from fanout.orchestrator.workspace.merge import FolderMerge
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.rooted import (
    MAX_HELD_BYTES,
    PERMISSION_BITS,
    Found,
    PathRefused,
    check_link,
    check_path,
)

from .protocol import WORKSPACE, Command, Sandbox

Result = TypeVar("Result")

MAX_MERGES = 4
"""The most merges at once in a worker. They have their own threads: they wait for operations that
need the default ones."""

STOP_SECONDS = 5.0
"""The time for the current operation of a cancelled merge; it takes milliseconds unless the host
hangs."""

MERGING = ThreadPoolExecutor(MAX_MERGES, thread_name_prefix="merge")


async def merge_into(
    sandbox: Sandbox, bundle: Path, *, mark: str | None = None, moved: set[str] | None = None
) -> MergeReport:
    """Merge a change bundle into a sandbox's workspace; repeating it changes nothing.

    Args:
        sandbox: an open sandbox.
        bundle: the file of the bundle.
        mark: as of `FolderMerge`; with it a merge is not repeated.
        moved: the new paths of files that earlier merges moved, to which those of this one are
            added. Without a repository, nothing else shows that a deleted file was moved.

    Raises:
        MalformedBundle: the file is not a change bundle.
        SandboxFailure: the sandbox failed; the merge can be repeated in the next one with these
            files.
    """

    def merge(folder: SandboxFolder) -> MergeReport:
        known = set() if moved is None else moved
        with ChangeBundle.open(bundle) as opened:
            report = FolderMerge(
                folder, opened, mark=mark, added=lambda: {*folder.added(), *known}
            ).run()
            known |= {file.path for file in opened.changes.files if file.from_path is not None}
            return report

    return await in_folder(sandbox, merge)


async def in_folder(sandbox: Sandbox, work: Callable[[SandboxFolder], Result]) -> Result:
    """Run blocking work on a sandbox's workspace in a thread of `MERGING`, and return its result.

    Nothing is written any more once a cancellation is raised.

    Args:
        sandbox: an open sandbox.
        work: is called with the workspace's files; its exceptions pass.
    """
    folder = SandboxFolder(sandbox, asyncio.get_running_loop())
    submitted = MERGING.submit(work, folder)
    working = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        folder.stop()
        if not submitted.cancel():  # a thread has begun with it
            working.add_done_callback(asyncio.Future.exception)  # nobody else asks for it
            await ended(STOP_SECONDS, working)
        raise


class SandboxFolder:
    """The files of a sandbox's workspace, for a thread other than the event loop's.

    Paths are relative to the workspace. Every method raises `PathRefused` for a path that leaves
    the workspace or leads through a link, `OSError` for what the file system rejects, and
    `SandboxFailure`.
    """

    def __init__(self, sandbox: Sandbox, loop: asyncio.AbstractEventLoop) -> None:
        self._sandbox = sandbox
        self._loop = loop
        self._is_stopped = False

    def stop(self) -> None:
        """Let every later operation raise `asyncio.CancelledError`."""
        self._is_stopped = True

    def find(self, path: str) -> Found | None:
        """Return what is at the path; None when nothing is, or when a file is above it."""
        with suppress(FileNotFoundError, NotADirectoryError):
            full = self._checked(path)
            entry = self._wait(self._sandbox.lstat(full))
            mode = entry.mode & PERMISSION_BITS
            if entry.kind == "other":
                return Found(kind=None, mode=mode)
            if entry.kind == "directory":
                return Found(kind="directory", mode=mode)
            content = self._content(path, entry)
            digest = None if content is None else hashlib.sha256(content).hexdigest()
            return Found(kind=entry.kind, mode=mode, sha256=digest, content=content)
        return None

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory; empty when there is none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            entries = self._wait(self._sandbox.list(self._checked(path)))
            return frozenset(entry.path.rpartition("/")[2] for entry in entries)
        return frozenset()

    def added(self) -> list[str]:
        """Return the files that the commit which is checked out lacks; none without a repository.

        The sandbox's own Git is asked, so the paths are only a hint.
        """
        others = ("ls-files", "-z", "--others", "--exclude-standard")
        staged = ("diff", "-z", "--cached", "--name-only", "--no-renames", "--diff-filter=A")
        found: list[str] = []
        for listing in (others, staged):
            with suppress(OSError):
                output = self._run("git", *listing)
                found += map(path_text, filter(None, output.split(b"\0")))
        return found

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Write a whole file atomically. A link or a directory is replaced, not written through."""
        full = self._checked(path)
        if instead_of is None or instead_of.kind == "file":
            is_new = instead_of is None
            self._wait(self._sandbox.write_bytes(full, content, create_only=is_new, mode=mode))
            return
        aside = _aside(path)
        writing = self._sandbox.write_bytes
        self._wait(writing(f"{WORKSPACE}/{aside}", content, create_only=True, mode=mode))
        self._run("mv", "-fT", "--", _here(aside), _here(path))

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Create a symlink atomically."""
        del instead_of
        check_link(path, os.fsdecode(target))
        self._checked(path)
        aside = _aside(path)
        if folder := path.rpartition("/")[0]:
            self._run("mkdir", "-p", "--", _here(folder))
        self._run("ln", "-s", "--", os.fsdecode(target), _here(aside))
        self._run("mv", "-fT", "--", _here(aside), _here(path))

    def put_directory(self, path: str, mode: int) -> None:
        """Create a directory and its parents; an existing one does not change."""
        self._checked(path)
        self._run("mkdir", "-p", "-m", f"{mode & PERMISSION_BITS:o}", "--", _here(path))

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Change a file's permission bits."""
        del instead_of
        self._checked(path)
        self._run("chmod", f"{mode & PERMISSION_BITS:o}", "--", _here(path))

    def remove(self, path: str, instead_of: Found) -> None:
        """Remove a file or a link."""
        del instead_of
        self._wait(self._sandbox.delete(self._checked(path)))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._checked(path)
        self._run("rmdir", "--", _here(path))

    def _checked(self, path: str) -> str:
        """Return the path in the sandbox; PathRefused when a link is on the way."""
        *above, _ = check_path(path)
        folder = WORKSPACE
        for name in above:
            folder = f"{folder}/{name}"
            with suppress(FileNotFoundError):
                if self._wait(self._sandbox.lstat(folder)).kind == "symlink":
                    raise PathRefused("The path leads through a symlink.")
        return f"{WORKSPACE}/{path}"

    def _content(self, path: str, entry: Entry) -> bytes | None:
        """Return a link's target, or a file's bytes; None when it is too large for a bundle."""
        if entry.kind == "symlink":
            return self._run("readlink", "-n", "--", _here(path))
        if entry.size_bytes > MAX_HELD_BYTES:
            return None
        return self._wait(self._sandbox.read_bytes(entry.path))

    def _run(self, *argv: str) -> bytes:
        """Run a command for which a sandbox has no operation."""
        result = self._wait(self._sandbox.run(Command(argv=argv, merge_stderr=False)))
        if result.exit_code:
            raise OSError(errno.EIO, f"{argv[0]} failed in the sandbox")
        return result.output

    def _wait(self, operation: Coroutine[Any, Any, Result]) -> Result:
        if self._is_stopped:
            operation.close()
            raise asyncio.CancelledError
        return asyncio.run_coroutine_threadsafe(operation, self._loop).result()


def _here(path: str) -> str:
    """Return a path in the workspace as an argument of a command that runs there."""
    return f"./{os_path(path)}"


def _aside(path: str) -> str:
    """Return a name in the path's folder that change lists ignore."""
    folder, _, _ = path.rpartition("/")
    name = f".fanout-{secrets.token_hex(8)}~"
    return f"{folder}/{name}" if folder else name
