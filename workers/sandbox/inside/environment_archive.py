"""Writes what a set-up has made of a prepared environment. Standard library only: see `steward`.

That are the new files which Git ignores, by the rules of what the set-up started from, and what
tools leave behind: the same files that no change bundle carries. What the set-up changed of other
files is left out, so that an environment never has what would be a job's change.
"""

from __future__ import annotations

import os
import stat
import tarfile
from contextlib import closing
from typing import TYPE_CHECKING

from .change_bundle import BY_PRODUCT, Scratch, added, ignored_paths
from .change_sides import Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from .change_sides import Root

_MAX_PATHS_BYTES = 256 << 20
"""The most bytes of all paths: two million files, four times what an archive may have."""


class TooManyFiles(OSError):
    """A set-up made more files than an environment may have."""


def write_environment(out: IO[bytes], before: Root, after: Side, candidates: Iterable[str]) -> None:
    """Write the archive of the new files that Git ignores.

    Modes keep their permission bits only. Special files are left out.

    Args:
        out: written from its start to its end.
        before: what the set-up started from.
        after: the result; it is closed here.
        candidates: from `scan_overlay`.

    Raises:
        GitFailed: git is missing or failed.
        TooManyFiles: there are too many.
        OSError: a file cannot be read.
    """
    with (
        Scratch() as scratch,
        closing(Side(before)) as old,
        closing(after) as new,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        kept: list[str] = []
        asked: list[str] = []
        size = 0
        for path in candidates:
            query = added(old, new, path)
            if not query:
                continue
            size += len(path)
            if size > _MAX_PATHS_BYTES:
                raise TooManyFiles
            (kept if BY_PRODUCT.search(path) else asked).append(path)
        for path in sorted({*kept, *ignored_paths(scratch.git, old, new, asked)}):
            _add(archive, new, path)


def _add(archive: tarfile.TarFile, side: Side, path: str) -> None:
    status = side.status(path)
    if status is None:
        return
    member = tarfile.TarInfo(path)
    member.mode = stat.S_IMODE(status.st_mode) & 0o777
    member.mtime = int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif stat.S_ISLNK(status.st_mode):
        member.type = tarfile.SYMTYPE
        member.linkname = os.fsdecode(side.link_target(path))
        archive.addfile(member)
    elif stat.S_ISREG(status.st_mode):
        with os.fdopen(side.open_file(path), "rb", buffering=0) as file:
            member.size = os.fstat(file.fileno()).st_size
            archive.addfile(member, file)


def without_removed(candidates: Iterable[str], before: Root, after: Side) -> Iterator[str]:
    """Yield the candidates that are on one of the sides.

    A job that deletes files of its environment has changed nothing.

    Args:
        candidates: from `scan_overlay`.
        before: what the job started from, without its environment.
        after: the result.
    """
    with closing(Side(before)) as old:
        for path in candidates:
            if old.status(path) is not None or after.status(path) is not None:
                yield path
