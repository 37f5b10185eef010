"""Writes received archives and files, which are not trusted, into an empty folder.

A snapshot is made of the folder afterwards, as of a person's folder: what Git ignores and what
seems to be secret is left out by the same rules. Workers unpack snapshots with separate code
(`workers/sandbox/inside/archives.py`), which needs only Python and reads only fanout's own format.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ...bounded_process import Killed, ProcessBounds, run_program
from ...jobs.failures import JobFailure
from . import unpacking

UNPACK_SECONDS = 300.0
"""The time for one archive: ten times as long as one of the largest size and number takes on a
quick disk."""
UNPACK_CPU_SECONDS = 120.0
"""The processor time for one archive, which is decompressed twice."""
UNPACK_MEMORY_BYTES = 1024**3
"""The memory for unpacking; the list of a zip's members takes a quarter of it."""


class ArchiveRefused(JobFailure):
    """The archive cannot be a workspace; the text says why."""


def unpack(
    archive: Path, folder: Path, *, max_bytes: int, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Unpack an archive into an empty private folder, in a process with limits; blocks.

    All of it is counted before the first file is written.

    Args:
        archive: The archive; its format is detected from its content.
        folder: The folder; nothing outside of it is written.
        max_bytes: The maximum sum of its files.
        is_wanted: Asked while it is unpacked; when it returns False, the process is killed.

    Raises:
        ArchiveRefused: The archive is damaged, needs more than an honest one, or has members
            outside its root, links that lead out of it, or anything other than files, folders and
            links.
        OSError: The folder cannot be written.
    """
    bounds = ProcessBounds(
        memory_bytes=UNPACK_MEMORY_BYTES,
        cpu_seconds=UNPACK_CPU_SECONDS,
        file_bytes=max_bytes,
        yields=True,
    )
    arguments = [str(archive.absolute()), str(folder.absolute()), str(max_bytes)]
    try:
        code, said = run_program(
            unpacking.__name__, arguments, bounds, seconds=UNPACK_SECONDS, is_wanted=is_wanted
        )
    except Killed as failure:
        raise ArchiveRefused(f"The archive was not unpacked. {failure}") from None
    if code == unpacking.REFUSED:
        raise ArchiveRefused(said)
    if code == unpacking.NO_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code:
        raise ArchiveRefused("The archive takes too much time or memory to unpack.")


def write_files(files: Mapping[str, bytes], folder: Path, *, max_bytes: int) -> None:
    """Write received files into an empty private folder; blocks.

    Args:
        files: Contents by path.
        folder: The folder; nothing outside of it is written.
        max_bytes: The maximum sum of the contents.

    Raises:
        ArchiveRefused: A path leads out of the folder, or the files are too many or too large.
    """
    try:
        unpacking.write_files(files, folder, max_bytes)
    except unpacking.Refused as refusal:
        raise ArchiveRefused(str(refusal)) from None
