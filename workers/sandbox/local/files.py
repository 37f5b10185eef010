"""The local provider's files: job folders, snapshots, and paths that stay inside them."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.jobs.failures import SandboxFailure
from workers.sandbox.errors import SnapshotUnusable
from workers.sandbox.inside import files as resident_files
from workers.sandbox.inside import frames
from workers.sandbox.protocol import WORKSPACE

PRIVATE_TMP = "/tmp"  # noqa: S108 - the job's name for a folder of its own

_OPERATIONS = {**resident_files.OPERATIONS, **resident_files.SLOW_OPERATIONS}
_MAX_LINKS = 40
"""As many as Linux follows."""
_FOLLOWING = frozenset({"read", "list", "walk", "grep"})
_COPY_BYTES = 1 << 20
"""Copied at once: large enough to be quick, small beside a process."""


class JobPaths:
    """What a job calls `/workspace` and `/tmp`, as folders of this machine."""

    def __init__(self, tree: Path, tmp: Path, *, bound: bool) -> None:
        """`bound`: commands know the folders by these names.

        Else they see where they really are.
        """
        # The real folder comes first: it may itself be below /tmp.
        real = {} if bound else {str(tmp): str(tmp)}
        self._places = {**real, WORKSPACE: str(tree), PRIVATE_TMP: str(tmp)}

    def real(self, path: str, *, follow: bool) -> str:
        """Where a path of the job is; with `follow`, its last component may be a link, too.

        Raises:
            PermissionError: it is outside, or a link leads outside.
            OSError: its links go in circles, or it is no path.
        """
        if "\0" in path or not path.startswith("/"):
            raise OSError(errno.EINVAL, "not an absolute path", path)
        links, done, rest = 0, "/", [part for part in path.split("/") if part]
        while rest:
            part = rest.pop(0)
            done = posixpath.normpath(posixpath.join(done, part))
            place = self._place(done)
            if place is None or not Path(place).is_symlink() or not (rest or follow):
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = self._as_job_sees(str(Path(place).readlink()))
            rest = [part for part in target.split("/") if part] + rest
            done = "/" if target.startswith("/") else posixpath.dirname(done)
        place = self._place(done)
        if place is None:
            raise PermissionError(errno.EACCES, "outside of /workspace and /tmp", path)
        return place

    def _place(self, path: str) -> str | None:
        """A clean path of the job, links not regarded, on this machine."""
        for name, folder in self._places.items():
            if path == name or path.startswith(name + "/"):
                return folder + path[len(name) :]
        return None

    def _as_job_sees(self, target: str) -> str:
        """A link's target; commands without a mount namespace make links to the folders' real places."""
        for name, folder in self._places.items():
            if target == folder or target.startswith(folder + "/"):
                return name + target[len(folder) :]
        return target


class LocalOperations:
    """Carries out a resident's file operations on this machine's files; a `Requests`."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self.failure: SandboxFailure | None = None
        """What ended the sandbox; every later request raises it."""

    def raise_failure(self) -> None:
        """Raise what ended the sandbox, if something did."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        on_chunk: Callable[[bytes], Awaitable[None]] | None = None,  # noqa: ARG002 - no file operation has parts
        *,
        timeout_seconds: float | None = None,  # noqa: ARG002 - they end by themselves
        stop_seconds: float = 0.0,  # noqa: ARG002 - they cannot be stopped
    ) -> tuple[dict[str, Any], bytes]:
        """Carry out one operation in a thread; paths go in and come out as the job sees them."""
        self.raise_failure()
        return await asyncio.to_thread(self._carry_out, op, arguments, payload)

    async def upload(self, source: bytes | AsyncIterable[bytes], directory: str) -> str:
        """Stage a big content in the folder where it will be."""
        if not isinstance(source, bytes):
            raise TypeError("only bytes are uploaded here")
        real = await asyncio.to_thread(self._paths.real, directory, follow=True)
        upload = {"id": os.urandom(8).hex(), "directory": real}
        await asyncio.to_thread(_OPERATIONS["upload"], upload, source)
        return upload["id"]

    def _carry_out(
        self, op: str, arguments: dict[str, Any], payload: bytes
    ) -> tuple[dict[str, Any], bytes]:
        path = arguments["path"]
        follow = op in _FOLLOWING or (op == "write" and not arguments["create_only"])
        try:
            real = self._paths.real(path, follow=follow)
            if op == "write" and path.endswith("/"):
                raise IsADirectoryError(errno.EISDIR, "not a file name", path)
            given = {**arguments, "path": real}
            if arguments.get("only") is not None:
                return self._grep_only(given, arguments["only"])
            result, data = _OPERATIONS[op](given, payload)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), path) from error
        except UnicodeEncodeError as error:  # no file can have that name
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path) from error
        if op in ("stat", "list", "walk"):
            return result, _renamed_records(data, real, path)
        if op == "grep":
            return result, _renamed_hits(data, lambda found: path + found[len(real) :])
        return result, data

    def _grep_only(
        self, arguments: dict[str, Any], only: list[str]
    ) -> tuple[dict[str, Any], bytes]:
        places = {}
        for path in only:
            try:
                places[self._paths.real(path, follow=True)] = path
            except OSError:
                continue  # like a file that cannot be read
        result, data = _OPERATIONS["grep"]({**arguments, "only": list(places)}, b"")
        return result, _renamed_hits(data, places.__getitem__)


def _renamed_records(data: bytes, real: str, path: str) -> bytes:
    """The records of `files.entry_record` with the job's names."""
    records = []
    for record in data.split(b"\0") if data else ():
        *fields, place = record.split(b" ", 4)
        records.append(b" ".join((*fields, os.fsencode(path) + place[len(os.fsencode(real)) :])))
    return b"\0".join(records)


def _renamed_hits(data: bytes, name: Callable[[str], str]) -> bytes:
    return frames.encode([[name(path), number, line] for path, number, line in frames.decode(data)])


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with its modes, times and links; shares blocks where the file system can."""
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    command = ["cp", "-a", "--reflink=auto", "--", str(source), str(part)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our paths
    part.rename(target)


def unpack_snapshot(archive: Path, target: Path) -> None:
    """Unpack a snapshot's archive into a folder that appears when it is complete.

    A ready one stays.

    Raises:
        SnapshotUnusable: it is damaged, or has something else than files, folders and symlinks
            inside it.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name[:16]}-", dir=target.parent))
    try:
        part.chmod(0o755)
        _unpack(archive, part)
        part.rename(target)
    except OSError:
        if not target.exists():  # unless another one was first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unpack(archive: Path, target: Path) -> None:
    links: list[tuple[Path, str]] = []
    folders: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                place = target / _inside(member)
                if member.issym():
                    links.append((place, member.linkname))
                elif member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                    folders.append((place, member))
                elif member.isreg():
                    _unpack_file(tar, member, place)
                else:
                    raise SnapshotUnusable(
                        "the snapshot holds something that is no file, folder or symlink"
                    )
        # links come last, so that no member can be written through one
        for place, destination in links:
            if any((target / folder).is_symlink() for folder in place.relative_to(target).parents):
                raise SnapshotUnusable("the snapshot has an entry below a symlink")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(destination)
        for place, member in reversed(folders):
            _restore(place, member)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise SnapshotUnusable(
            f"the snapshot's archive is damaged ({type(error).__name__})"
        ) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise SnapshotUnusable("the snapshot has two entries at one path") from error


def _inside(member: tarfile.TarInfo) -> str:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise SnapshotUnusable("the snapshot has a path outside of the workspace")
    return member.name


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    source = tar.extractfile(member)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        if source is not None:
            shutil.copyfileobj(source, file, _COPY_BYTES)
        if file.tell() != member.size:
            raise SnapshotUnusable("the snapshot's archive ends early")
    _restore(place, member)


def _restore(place: Path, member: tarfile.TarInfo) -> None:
    place.chmod(member.mode & 0o777)
    os.utime(place, (member.mtime, member.mtime))


def disk_bytes(folder: Path) -> int:
    """What a folder takes on the disk, its entries included.

    Files that vanish meanwhile do not count.
    """
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        total += status.st_blocks * 512 + _ENTRY_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except OSError:
            continue
    return total


_ENTRY_BYTES = 1024
"""What an inode and its name cost; without it, ten million empty files would count as nothing."""
