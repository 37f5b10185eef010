"""The changes of a job: changed files and their contents before and after.

A change bundle is one uncompressed tar archive:

    changes.json        a `Changes` document
    objects/<sha256>    every content that an entry names, before or after

It contains both sides, so that a merge needs nothing but the bundle and the workspace, and a patch
is made of them when it is requested. Bundles of older releases have a member `patch` besides,
which nobody reads.

Paths are path texts (`orchestrator.path_text`). A document in which one differs from the file's
name has version 2; in version 1 every path is the name itself.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from ..git.patches import PatchFile, patch_between
from ..git.process import GitFailed
from ..path_text import differing_bytes, path_text
from .spec import BlobId, WireModel

BUNDLE_VERSION: Literal[2] = 2
"""The version of bundles. It is incremented with every change of what a merge reads, because a
merge must understand all of it. A document that the previous version can express has the previous
version."""
MAX_DOCUMENT_BYTES = 16 * 1024**2
"""The largest `changes.json`; the storage service writes at most half of it, whatever the paths
are."""
MAX_MEMBERS = 25_000
"""The largest number of members of a bundle: both sides of 10,000 changes, and the list."""
FileKind = Literal["file", "symlink", "directory"]


def _is_none(value: object) -> bool:
    return value is None


class ChangeKind(StrEnum):
    """The kind of a change."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    MODE = "mode"


class FileChange(WireModel):
    """One changed path, as a result lists it. Paths are relative to the workspace, with `/`."""

    path: str
    """Its path text: a byte that is not UTF-8 is written as `\\xNN`."""
    path_bytes: str | None = Field(default=None, exclude_if=_is_none)
    """The bytes of the path in Base64, if its text is not the path itself."""
    change: ChangeKind
    from_path: str | None = None
    """The previous path of a renamed file."""
    from_path_bytes: str | None = Field(default=None, exclude_if=_is_none)
    """The bytes of the previous path, in the form of `path_bytes`."""
    lines_added: int = 0
    lines_removed: int = 0
    binary: bool = False
    size_bytes: int = 0
    """The size afterwards; 0 when deleted."""

    @model_validator(mode="after")
    def _derive_bytes(self) -> Self:
        """Derive the bytes of both paths, so that no writer can contradict the paths."""
        # Into the dict, because the model is frozen.
        self.__dict__["path_bytes"] = differing_bytes(self.path)
        self.__dict__["from_path_bytes"] = differing_bytes(self.from_path or "")
        return self


class FileVersion(WireModel):
    """One side of a change.

    `sha256` names an object of the bundle; a symlink's content is its target.
    """

    kind: FileKind
    mode: int = Field(ge=0, le=0o7777)
    sha256: BlobId | None = None
    """None for a directory."""
    size_bytes: int = 0


class ChangedFile(FileChange):
    """A changed path with both its versions; `before` is None when added, `after` when deleted."""

    before: FileVersion | None = None
    after: FileVersion | None = None


class SkippedFile(WireModel):
    """A changed path that is not in the bundle: a special, too large or unreadable file."""

    path: str
    reason: str


class Changes(WireModel):
    """The document `changes.json` of a bundle."""

    version: Literal[1, 2] = 1
    files: tuple[ChangedFile, ...] = ()
    """Sorted by path."""
    ignored: tuple[str, ...] = ()
    """Changed paths that the snapshot's ignore rules exclude; listed, not merged."""
    skipped: tuple[SkippedFile, ...] = ()

    @model_validator(mode="after")
    def _set_version(self) -> Self:
        """Give new changes the lowest version that expresses them; read version 1 as names."""
        if any(file.path_bytes or file.from_path_bytes for file in self.files):
            if "version" not in self.model_fields_set:
                self.__dict__["version"] = 2
            elif self.version == 1:
                self.__dict__["files"] = tuple(map(_with_path_texts, self.files))
        return self

    def summary(self) -> tuple[FileChange, ...]:
        """Return the entries without their contents, for a `JobResult`."""
        fields = set(FileChange.model_fields)
        return tuple(FileChange(**file.model_dump(include=fields)) for file in self.files)


def _with_path_texts(file: ChangedFile) -> ChangedFile:
    from_path = None if file.from_path is None else path_text(file.from_path)
    return ChangedFile(**{**vars(file), "path": path_text(file.path), "from_path": from_path})


class MalformedBundle(ValueError):
    """The archive is not a change bundle."""


class NewerBundle(MalformedBundle):
    """A newer release of fanout wrote the bundle."""


class PatchFailed(RuntimeError):
    """Git could not make a patch of the changes."""


class ChangeBundle:
    """A change bundle opened for reading.

    Args:
        archive: The open archive; it stays the caller's.

    Raises:
        MalformedBundle: The archive is not a bundle.
        NewerBundle: A newer release wrote it.
    """

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._file = archive.fileobj
        self._members = _members(archive)
        document = self._read("changes.json", MAX_DOCUMENT_BYTES)
        try:
            self.changes = Changes.model_validate_json(document)
        except ValidationError as error:
            version = _version(document)
            if version > BUNDLE_VERSION:
                known = f"version {version}; this one reads {BUNDLE_VERSION}"
                raise NewerBundle(
                    f"A newer release of fanout wrote the changes ({known})."
                ) from error
            raise MalformedBundle(
                f"changes.json is invalid: {error.error_count()} errors"
            ) from error

    @classmethod
    @contextmanager
    def open(cls, source: Path | IO[bytes]) -> Iterator[Self]:
        """Open a bundle from a file, for the duration of a context.

        Args:
            source: A path, or a seekable stream.

        Raises:
            MalformedBundle: The archive is damaged or not a bundle; raised later too, when a
                damaged content is read inside the context.
            NewerBundle: A newer release wrote it.
        """
        try:
            with (
                tarfile.open(source, mode="r:", tarinfo=_PlainMember)
                if isinstance(source, Path)
                else tarfile.open(fileobj=source, mode="r:", tarinfo=_PlainMember)
            ) as archive:
                yield cls(archive)
        except (tarfile.TarError, EOFError) as error:
            raise MalformedBundle(f"not a change bundle: {error}") from error

    def patch(self, path: str | None = None) -> bytes:
        """Make the patch from the snapshot to the result, for `git apply` and for people; blocks.

        It is what `git diff --binary -M` prints; empty folders are not in it.

        Args:
            path: Restricts the patch to this path; the patch is empty if it has not changed.

        Raises:
            MalformedBundle: The bundle lacks a content.
            PatchFailed: Git is not installed, failed, or needed too much time.
        """
        files = [file for file in self.changes.files if path is None or file.path == path]
        before = [(file.from_path or file.path, file.before) for file in files]
        after = [(file.path, file.after) for file in files]
        try:
            return patch_between(self._patch_files(before), self._patch_files(after))
        except GitFailed as error:
            raise PatchFailed(f"The patch cannot be made: {error}") from error

    def _patch_files(self, side: Iterable[tuple[str, FileVersion | None]]) -> Iterator[PatchFile]:
        for path, version in side:
            if version is not None and version.kind != "directory":
                yield PatchFile(path, _git_mode(version), partial(self.content, version))

    def content(self, version: FileVersion) -> bytes:
        """Return the content of one side of a change; empty for a directory.

        Raises:
            MalformedBundle: The bundle lacks the content.
        """
        return b"" if version.sha256 is None else self._read(f"objects/{version.sha256}")

    def _read(self, name: str, max_bytes: int | None = None) -> bytes:
        offset, size = self._members.get(name, (0, -1))
        if size < 0 or self._file is None:
            raise MalformedBundle(f"the bundle has no {name}")
        if max_bytes is not None and size > max_bytes:
            raise MalformedBundle(f"{name} is larger than {max_bytes} bytes")
        self._file.seek(offset)
        content = self._file.read(size)
        if len(content) < size:
            raise MalformedBundle(f"the bundle ends within {name}")
        return content


def _git_mode(version: FileVersion) -> str:
    if version.kind == "symlink":
        return "120000"
    return "100755" if version.mode & 0o100 else "100644"


def empty_bundle() -> IO[bytes]:
    """Return the change bundle of a job that changed nothing, open at its start."""
    bundle = io.BytesIO()
    document = Changes().model_dump_json().encode()
    with tarfile.open(fileobj=bundle, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo("changes.json")
        member.size = len(document)
        archive.addfile(member, io.BytesIO(document))
    bundle.seek(0)
    return bundle


class _PlainMember(tarfile.TarInfo):
    """A member without extensions: those would be read at once, whatever their size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
            raise tarfile.ReadError("a member is not a plain file")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member


def _members(archive: tarfile.TarFile) -> dict[str, tuple[int, int]]:
    """Return the place and the size of each member, found one after another.

    Raises:
        MalformedBundle: there are more than a bundle may have.
    """
    members = {}
    while (member := archive.next()) is not None:
        members[member.name] = (member.offset_data, member.size)
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        if len(members) > MAX_MEMBERS:
            raise MalformedBundle(f"it has more than {MAX_MEMBERS} members")
    return members


class _Versioned(BaseModel):
    version: int = 0


def _version(document: bytes) -> int:
    """Return the version in a document; 0 when it has none."""
    try:
        return _Versioned.model_validate_json(document).version
    except ValidationError:
        return 0
