"""Files that callers send or name, as snapshots, for all interfaces.

The names of Git repositories are not trusted, so these are cloned from known hosts only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree

from ..client.job_files import StoredFiles, to_its_end
from ..jobs.failures import JobFailure
from ..public_addresses import is_public, parse_host
from ..turns import OwnerTurns
from ..workspace.exchange.cloned import HTTPS_PORT, GitRules, GitSource, clone
from ..workspace.exchange.received import unpack, write_files
from .owned_jobs import OwnedJobs

Resolve = Callable[[str, int], Collection[str]]
AT_ONCE = 6
"""The most archives that one server unpacks, and repositories that it clones, at the same time:
each takes a process, a thread and a disk."""
AT_ONCE_OF_OWNER = 2
"""The most of them for one owner: a slow clone does not delay the owner's next upload."""
RECEIVED_AT_ONCE = 64
"""The most archives that one server receives at the same time: its disk has them until they are
stored."""
RECEIVED_AT_ONCE_OF_OWNER = 8
"""The most of them from one owner, including those that wait to be unpacked."""
WAITING_OF_OWNER = 32
"""The most uploads and clones of one owner that wait for a turn; further ones are refused."""
RECEIVE_SECONDS = 3600.0
"""The time for the bytes of one archive: 2 GiB at 5 Mbit/s. A client that sends nothing is
disconnected earlier."""
STORE_SECONDS = 600.0
"""The time for unpacking or cloning, and for the snapshot."""


class GitHosts:
    """Finds the addresses of a host that may be connected to; Git connects to these only.

    Args:
        allowed: Hosts, or `host:port`, that may have any address and any port
            (FANOUT_API__GIT_HOSTS).
        resolve: Finds the addresses of a host.
    """

    def __init__(self, allowed: Collection[str] = (), resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(allowed)
        self._resolve = resolve or _look_up

    def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses; blocks.

        Raises:
            ValueError: There are none, or they may not be connected to; the text says what to do.
        """
        if parse_host(f"[{host}]" if ":" in host else host) is None:
            raise ValueError("The host of the repository is a name, or an address as usual.")
        is_allowed = host in self._allowed or f"{host}:{port}" in self._allowed
        if port != HTTPS_PORT and not is_allowed:
            raise ValueError("The port of the repository is 443 (FANOUT_API__GIT_HOSTS).")
        try:
            found = list(dict.fromkeys(self._resolve(host, port)))
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise ValueError("The host of the repository is not found.")
        if not is_allowed and not all(map(is_public, found)):
            raise ValueError(
                "The host of the repository is not on the public internet: only an operator can "
                "allow it (FANOUT_API__GIT_HOSTS)."
            )
        return found


def _look_up(host: str, port: int) -> list[str]:
    return [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class ServiceFull(JobFailure):
    """The disk of the service has no room."""


class UploadTooSlow(JobFailure):
    """An upload took longer than it may."""


class Uploads:
    """Makes snapshots of files that callers send.

    Every method raises what `OwnedJobs.add_snapshot` raises, and `ServiceFull`, `CallerBusy` and
    `UploadTooSlow`.

    Args:
        rules: Which Git repositories are cloned.
    """

    def __init__(self, rules: GitRules | None = None) -> None:
        self._rules = rules or GitRules()
        self._receiving = OwnerTurns(
            at_once=RECEIVED_AT_ONCE,
            of_one_owner=RECEIVED_AT_ONCE_OF_OWNER,
            waiting_of_one_owner=WAITING_OF_OWNER,
        )
        self._storing = OwnerTurns(
            at_once=AT_ONCE, of_one_owner=AT_ONCE_OF_OWNER, waiting_of_one_owner=WAITING_OF_OWNER
        )
        # The threads of the process are for short work: a clone holds one for minutes.
        self._threads = ThreadPoolExecutor(AT_ONCE, "upload")

    @asynccontextmanager
    async def receiving(self, jobs: OwnedJobs) -> AsyncIterator[None]:
        """Hold one of the caller's places for an upload; limit its time."""
        async with jobs.turn(self._receiving), _in_time(RECEIVE_SECONDS):
            yield

    async def archive(self, jobs: OwnedJobs, content: AsyncIterator[bytes]) -> StoredFiles:
        """Store the files of an archive: a tar, a tar.gz or a zip.

        Args:
            jobs: The caller's jobs.
            content: The archive.

        Raises:
            ArchiveRefused: It cannot be a workspace.
        """
        room = jobs.max_snapshot_bytes
        async with jobs.private_place() as place:
            archive = place / "archive"
            await _save(content, archive)
            return await self._stored(
                jobs,
                place,
                lambda folder, is_wanted: unpack(
                    archive, folder, max_bytes=room, is_wanted=is_wanted
                ),
            )

    async def files(self, jobs: OwnedJobs, files: Mapping[str, bytes]) -> StoredFiles:
        """Store files.

        Args:
            jobs: The caller's jobs.
            files: Contents by path, relative to the workspace.

        Raises:
            ArchiveRefused: A path leads out of the workspace, or the files are too large.
        """
        room = jobs.max_snapshot_bytes
        async with jobs.private_place() as place:
            return await self._stored(
                jobs, place, lambda folder, _: write_files(files, folder, max_bytes=room)
            )

    async def repository(self, jobs: OwnedJobs, source: GitSource) -> StoredFiles:
        """Store the files of a Git repository, with its last commits.

        Args:
            jobs: The caller's jobs.
            source: The repository.

        Raises:
            CloneRefused: Its address is not allowed, it is too large, or Git failed.
        """
        room = jobs.max_snapshot_bytes
        async with jobs.private_place() as place:
            return await self._stored(
                jobs,
                place,
                lambda folder, is_wanted: clone(
                    source, folder, self._rules, max_bytes=room, is_wanted=is_wanted
                ),
            )

    async def _stored(
        self, jobs: OwnedJobs, place: Path, fill: Callable[[Path, Callable[[], bool]], None]
    ) -> StoredFiles:
        """Fill a folder in the caller's turn, and return its snapshot."""
        folder = place / "files"  # the place itself is locked by its maker
        folder.mkdir()
        async with jobs.turn(self._storing), _in_time(STORE_SECONDS):
            try:
                await to_its_end(lambda is_wanted: fill(folder, is_wanted), self._threads)
                return await jobs.add_snapshot(folder)
            finally:  # in the turn as well: it takes as long as making them
                await to_its_end(lambda _: rmtree(folder, ignore_errors=True), self._threads)


@asynccontextmanager
async def _in_time(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise UploadTooSlow(
            f"The files were not stored within {seconds:g} seconds: send fewer, or try again."
        ) from None


async def _save(content: AsyncIterator[bytes], archive: Path) -> None:
    try:
        with await asyncio.to_thread(archive.open, "xb") as file:
            async for chunk in content:
                await asyncio.to_thread(file.write, chunk)
    except OSError as error:
        raise ServiceFull(
            f"The service could not store the archive ({error.strerror}): try again later."
        ) from error
