"""Restore points: copies of files that changes are about to touch.

Reverting changes by an inverse merge is not exact, because two jobs may have made the same change.
So the touched files are copied before and restored afterwards.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import IO, Self

from pydantic import TypeAdapter, ValidationError

from ..jobs.changes import ChangeBundle, FileVersion
from ..workspace.rooted import Folder, Found, PathRefused, check_path
from ..workspace.snapshots.archive import add_content

_INDEX = "versions.json"
_VERSIONS = TypeAdapter(dict[str, FileVersion | None])
MAX_INDEX_BYTES = 32 * 1024**2
"""The largest index, twice the list of a change bundle: it also has the folders above its paths."""


class MalformedRestorePoint(ValueError):
    """The archive is not a restore point."""


class RestorePoint:
    """The former entries at some paths of a folder; close it after use.

    Use `take` or `open`.

    Args:
        archive: A tar file with `versions.json` and the contents under their SHA-256. It is closed
            with the restore point.
        versions: The entry at each path; None: nothing.
    """

    def __init__(self, archive: IO[bytes], versions: dict[str, FileVersion | None]) -> None:
        self.archive = archive
        self._versions = versions

    def close(self) -> None:
        """Delete the contents."""
        self.archive.close()

    @classmethod
    def take(cls, folder: Folder, bundles: Iterable[ChangeBundle]) -> Self:
        """Keep what is at all paths that merging these bundles may change; blocks.

        A path that no merge would touch, because it leads out of the folder, is left out.

        Args:
            folder: The folder.
            bundles: The changes that are going to be merged.

        Raises:
            OSError: A file cannot be read, or there is no space for the copies.
        """
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            versions: dict[str, FileVersion | None] = {}
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                kept: set[str] = set()
                for path in sorted({path for bundle in bundles for path in _touched(bundle)}):
                    found = None
                    with suppress(PathRefused):  # behind a link, whose place a merge may take
                        found = folder.find(path)
                    versions[path] = _kept(archive, kept, found)
                add_content(archive, _INDEX, _VERSIONS.dump_json(versions))
            file.seek(0)
            stack.pop_all()
        return cls(file, versions)

    @classmethod
    def open(cls, archive: IO[bytes]) -> Self:
        """Open a stored one; blocks.

        Args:
            archive: A seekable stream, which the restore point closes.

        Raises:
            MalformedRestorePoint: The archive is damaged.
        """
        try:
            with tarfile.open(fileobj=archive, mode="r:") as opened:
                index = opened.getmember(_INDEX)
                stored = opened.extractfile(index)
                if stored is None or index.size > MAX_INDEX_BYTES:
                    raise MalformedRestorePoint("its index cannot be read")
                return cls(archive, _VERSIONS.validate_json(stored.read()))
        except (tarfile.TarError, KeyError, EOFError, ValidationError) as error:
            raise MalformedRestorePoint(f"not a restore point: {type(error).__name__}") from error

    def restore(self, folder: Folder) -> None:
        """Restore the former entries; blocks. Repeating it changes nothing.

        Args:
            folder: The folder, in which no other process writes to these paths.

        Raises:
            MalformedRestorePoint: A content is missing.
            OSError: A file cannot be written.
            ChangedMeanwhile: Another process writes to one of the files.
        """
        for path in sorted(self._versions, reverse=True):  # what is in a folder before the folder
            with suppress(PathRefused):  # a link took the folder's place, and is removed below
                before, now = self._versions[path], folder.find(path)
                if now is not None and (before is None or before.kind != now.kind):
                    _remove(folder, path, now)
        self.archive.seek(0)
        with tarfile.open(fileobj=self.archive, mode="r:") as archive:
            for path, before in sorted(self._versions.items()):
                if before is not None:
                    _put_back(folder, path, before, archive)


def _touched(bundle: ChangeBundle) -> Iterable[str]:
    """Yield the paths of a bundle's changes, and all folders above them."""
    for file in bundle.changes.files:
        for path in filter(None, (file.path, file.from_path)):
            with suppress(PathRefused):
                names = check_path(path)
                yield from ("/".join(names[:depth]) for depth in range(1, len(names) + 1))


def _kept(archive: tarfile.TarFile, kept: set[str], found: Found | None) -> FileVersion | None:
    """Keep the content of an entry; one that no merge can replace has none."""
    if found is None or found.kind is None:
        return None
    version = FileVersion(kind=found.kind, mode=found.mode, sha256=found.sha256)
    if found.content is not None and found.sha256 is not None and found.sha256 not in kept:
        kept.add(found.sha256)
        add_content(archive, found.sha256, found.content)
    return version


def _remove(folder: Folder, path: str, now: Found) -> None:
    if now.kind == "directory":
        with suppress(OSError):  # it holds files that no merge has written
            folder.remove_directory(path)
    elif now.kind is not None:
        folder.remove(path, now)


def _put_back(folder: Folder, path: str, before: FileVersion, archive: tarfile.TarFile) -> None:
    now = folder.find(path)
    if before.kind == "directory":
        if now is None:
            folder.put_directory(path, before.mode)
        return
    if now is None or (now.kind, now.sha256) != (before.kind, before.sha256):
        content = _content(archive, before)
        if before.kind == "symlink":
            with suppress(PathRefused):  # it led out of the folder, and no merge makes such a link
                folder.put_link(path, content, now)
        else:
            folder.put_file(path, content, before.mode, now)
    elif now.kind == "file" and now.mode != before.mode:
        folder.set_mode(path, before.mode, now)


def _content(archive: tarfile.TarFile, version: FileVersion) -> bytes:
    try:
        stored = archive.extractfile(str(version.sha256))
    except (tarfile.TarError, KeyError) as error:
        raise MalformedRestorePoint("a content is missing") from error
    if stored is None:
        raise MalformedRestorePoint("a content is missing")
    return stored.read()
