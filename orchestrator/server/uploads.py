"""Files that callers send, as snapshots: the one way for all doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from fanout.orchestrator.client.job_files import StoredFiles, to_its_end
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.server.owned_jobs import OwnedJobs
from fanout.orchestrator.workspace.exchange.cloned import GitRules, GitSource, clone
from fanout.orchestrator.workspace.exchange.received import unpack, write_files

AT_ONCE = 4
"""Archives that one server unpacks and repositories that it clones at the same time: each takes a
thread, of which a process has few, and a disk."""


class ServiceFull(JobFailure):
    """The disk of the service has no room."""


class Uploads:
    """Makes snapshots of what callers send.

    Every method raises what `OwnedJobs.add_snapshot` raises, and `ServiceFull`.

    Args:
        rules: Which Git repositories are cloned.
    """

    def __init__(self, rules: GitRules | None = None) -> None:
        self._rules = rules or GitRules()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def archive(self, jobs: OwnedJobs, content: AsyncIterator[bytes]) -> StoredFiles:
        """Store the files of an archive: a tar, a tar.gz or a zip.

        Args:
            jobs: The caller's.
            content: The archive.

        Raises:
            ArchiveRefused: It cannot be a workspace.
        """
        async with jobs.private_place() as place:
            archive, folder = place / "archive", place / "files"
            await _save(content, archive)
            folder.mkdir()
            room = jobs.max_snapshot_bytes
            async with self._turns:
                await to_its_end(
                    lambda is_wanted: unpack(archive, folder, max_bytes=room, is_wanted=is_wanted)
                )
                return await jobs.add_snapshot(folder)

    async def files(self, jobs: OwnedJobs, files: Mapping[str, bytes]) -> StoredFiles:
        """Store files.

        Args:
            jobs: The caller's.
            files: Contents by path, relative to the workspace.

        Raises:
            ArchiveRefused: A path leads out of the workspace, or the files are too large.
        """
        async with jobs.private_place() as place:
            folder = place / "files"  # the place itself is locked by its maker
            folder.mkdir()
            room = jobs.max_snapshot_bytes
            await asyncio.to_thread(write_files, files, folder, max_bytes=room)
            return await jobs.add_snapshot(folder)

    async def repository(self, jobs: OwnedJobs, source: GitSource) -> StoredFiles:
        """Store the files of a Git repository, with its last commits.

        Args:
            jobs: The caller's.
            source: The repository.

        Raises:
            CloneRefused: Its address is not allowed, it is too large, or Git failed.
        """
        async with jobs.private_place() as place:
            folder = place / "files"
            folder.mkdir()
            room = jobs.max_snapshot_bytes
            async with self._turns:
                await to_its_end(
                    lambda is_wanted: clone(
                        source, folder, self._rules, max_bytes=room, is_wanted=is_wanted
                    )
                )
                return await jobs.add_snapshot(folder)


async def _save(content: AsyncIterator[bytes], archive: Path) -> None:
    try:
        with await asyncio.to_thread(archive.open, "xb") as file:
            async for chunk in content:
                await asyncio.to_thread(file.write, chunk)
    except OSError as error:
        raise ServiceFull(
            f"The service could not store the archive ({error.strerror}): try again later."
        ) from error
