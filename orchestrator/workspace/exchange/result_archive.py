"""The files of a job as an archive that is made while it is sent, neither in memory nor on disk.

They are the snapshot with its layers and the job's own changes. What an agent wrote is not trusted,
so no member lies below a link.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from ...jobs.changes import ChangeBundle
from ...path_text import os_path, path_text
from ..layers import PathChange, composed
from ..rooted import PERMISSION_BITS
from ..snapshots.archive import ARCHIVE_MTIME

_CHUNK_BYTES = 256 * 1024
"""The bytes compressed at once, which is how much of a download waits in memory for a slow reader.
"""
_QUICK = 1
"""The level of compression: with better ones a core is the limit, not the network."""
_GZIP = 31
"""The window bits with which zlib writes a gzip file."""
_File = tarfile.TarInfo | PathChange
"""A file as the snapshot has it, or in its changed version."""
_TYPES = {"file": tarfile.REGTYPE, "symlink": tarfile.SYMTYPE, "directory": tarfile.DIRTYPE}


class ResultArchive:
    """The files after a job, opened for reading.

    Args:
        snapshot: The archive that the job started from; None: an empty workspace, or only the
            changes are wanted.
        bundles: Change bundles, each against the result of the one before.

    Raises:
        MalformedBundle: A bundle cannot be read.
        OSError: A file cannot be opened.
    """

    def __init__(self, snapshot: Path | None, bundles: Sequence[Path]) -> None:
        with ExitStack() as stack:
            opened = [stack.enter_context(ChangeBundle.open(one)) for one in bundles]
            self._changed = composed(opened)
            self._base = None
            if snapshot is not None:
                self._base = stack.enter_context(tarfile.open(snapshot, "r:"))
            self._stack = stack.pop_all()

    def chunks(self) -> Iterator[bytes]:
        """Yield the archive, a tar.gz, once; blocks."""
        compressor = zlib.compressobj(_QUICK, zlib.DEFLATED, _GZIP)
        with self._stack:
            for block in self._blocks():
                if compressed := compressor.compress(block):
                    yield compressed
            yield compressor.compress(bytes(2 * tarfile.BLOCKSIZE)) + compressor.flush()

    def _blocks(self) -> Iterator[bytes]:
        for path, one in sorted(self._files().items()):
            if isinstance(one, PathChange):
                member, content = self._new(path, one)
            else:
                member, content = self._kept(one)
            yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            if member.isreg():
                while chunk := content.read(_CHUNK_BYTES):
                    yield chunk
                yield bytes(-member.size % tarfile.BLOCKSIZE)

    def _files(self) -> dict[str, _File]:
        """Return what is at each path after the job."""
        base = {} if self._base is None else {path_text(one.name): one for one in self._base}
        found: dict[str, _File] = {
            path: one for path, one in base.items() if path not in self._changed
        }
        found |= {path: one for path, one in self._changed.items() if one.after is not None}
        closed = {path for path, one in found.items() if not _is_folder(one)}
        found = {path: one for path, one in found.items() if closed.isdisjoint(_above(path))}
        was_filled = {folder for path in base for folder in _above(path)}
        is_filled = {folder for path in closed for folder in _above(path)}
        is_filled |= {folder for path in found.keys() - was_filled for folder in _above(path)}
        # a folder that loses its last file disappears, as in a layer
        return {
            path: one
            for path, one in found.items()
            if path in is_filled or path in closed or path not in was_filled
        }

    def _kept(self, member: tarfile.TarInfo) -> tuple[tarfile.TarInfo, IO[bytes]]:
        source = self._base.extractfile(member) if self._base and member.isreg() else None
        return member, source or io.BytesIO()

    def _new(self, path: str, change: PathChange) -> tuple[tarfile.TarInfo, IO[bytes]]:
        member = tarfile.TarInfo(os_path(path))
        member.mtime = ARCHIVE_MTIME
        if change.after is None:
            raise ValueError(path)
        member.mode = change.after.mode & PERMISSION_BITS
        member.type = _TYPES[change.after.kind]
        content = change.bundle.content(change.after)
        if member.issym():
            member.linkname = content.decode("utf-8", "surrogateescape")
        else:
            member.size = len(content)
        return member, io.BytesIO(content)


def _is_folder(file: _File) -> bool:
    if isinstance(file, PathChange):
        return file.after is not None and file.after.kind == "directory"
    return file.isdir()


def _above(path: str) -> list[str]:
    """Return the folders that a path is in."""
    names = path.split("/")[:-1]
    return ["/".join(names[: count + 1]) for count in range(len(names))]
