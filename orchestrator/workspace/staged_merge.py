"""One staged merge: from its first new content to the last rename, or back to the beginning.

A record outside of the folder names every staged entry before it is created, and, when all are on
the disk, the steps that put them in place. So the remains of a killed process are known: without
steps the staged entries are removed, with steps they are carried out (`recover`). The caller holds
the folder's lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from pydantic import Field, ValidationError

from ..jobs.failures import JobFailure
from ..jobs.spec import WireModel
from ..private_files import create_private_file, make_private_folder
from .dry_run import DryRun
from .rooted import (
    ChangedMeanwhile,
    Found,
    Identity,
    PathRefused,
    RootedFolder,
)

_STORAGE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ENOMEM, errno.EMFILE}
)
"""The errors of the disk or the process. Any other error concerns one file only."""
STAGED_NAME = r"^\.fanout-[0-9a-f]{24}~$"
"""The form of staged names, which change lists ignore, as every `.fanout-*~`."""

Left = dict[str, str | None]
"""Path of a change -> why it was not carried out; None: its target was changed meanwhile."""


Do = Literal["put", "mode", "remove", "remove_directory"]


class MergeUndone(JobFailure):
    """Nothing was merged, because the new contents could not be written."""


class MergeUnfinished(JobFailure):
    """A part of a merge is in place, and the rest waits for the next merge or snapshot."""


class StorageFailed(Exception):
    """The disk is full or failed; the text says how."""


def raise_if_storage(error: BaseException) -> None:
    """Raise StorageFailed for an error that is not of one file only."""
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        raise StorageFailed(error.strerror or str(error)) from error


class Step(WireModel):
    """One change of a folder."""

    do: Do
    path: str
    group: str
    """The path of the change that the step is part of: if one of its steps is left out, so are the
    later ones. A file that is moved is removed from its old path only when it is at the new one."""
    staged: str | None = Field(default=None, pattern=STAGED_NAME)
    """The name of the new entry, in the directory of the path; only for `put`."""
    expected: Identity | None = None
    """The target's identity when the merge was planned; None: it did not exist."""
    mode: int = Field(default=0, ge=0, le=0o777)


def carry_out(folder: RootedFolder, steps: Iterable[Step], *, again: bool = False) -> Left:
    """Carry out steps, and return the changes that were left out.

    Args:
        folder: The folder.
        steps: The steps, in order.
        again: They may have been carried out before, in part.

    Raises:
        StorageFailed: The disk failed; another execution may succeed.
    """
    left: Left = {}
    for step in steps:
        if step.group in left:
            continue
        try:
            _carry_out(folder, step)
        except FileNotFoundError:
            if not again:
                left[step.group] = None
        except ChangedMeanwhile:
            if not (again and step.do == "mode"):
                left[step.group] = None
        except (OSError, PathRefused) as error:
            raise_if_storage(error)
            left[step.group] = (isinstance(error, OSError) and error.strerror) or str(error)
    return left


def _carry_out(folder: RootedFolder, step: Step) -> None:
    if step.do == "put" and step.staged is not None:
        folder.move(step.staged, step.path, step.expected)
    elif step.do == "mode" and step.expected is not None:
        folder.set_mode(step.path, step.mode, step.expected)
    elif step.do == "remove" and step.expected is not None:
        folder.remove(step.path, step.expected)
    elif step.do == "remove_directory":
        with suppress(OSError):  # another program has put a file into it
            folder.remove_directory(step.path)


def sync(folder: RootedFolder, steps: Iterable[Step]) -> None:
    """Wait until the steps are on the disk."""
    for directory in {posixpath.dirname(step.path) for step in steps}:
        with suppress(OSError, PathRefused):
            folder.sync(directory)


class _Line(WireModel):
    """One line of a record."""

    staged: str | None = None
    """The path of an entry that is about to be staged."""
    steps: tuple[Step, ...] | None = None
    """All entries are staged; these steps put them in place."""


def record_path(records: Path, root: Path) -> Path:
    """Return the record of merges into a folder.

    Args:
        records: The folder of all records.
        root: The folder.
    """
    key = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()
    return records / f"{key[:32]}.jsonl"


class Staging:
    """A staged merge into a folder, as a context; leaving it before `commit` undoes it.

    Args:
        root: The folder.
        record: The file of the record; None: a merge whose process is killed stays unfinished.

    Raises:
        MergeUndone: The new contents could not be written.
    """

    def __init__(self, root: Path, record: Path | None) -> None:
        self.root = root
        self.folder = RootedFolder(root)
        self._path = record
        self._record: IO[bytes] | None = None
        self._token = secrets.token_hex(8)
        self._staged: list[str] = []
        self._keeps_record = False

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what is staged and the record, unless the steps wait for another execution."""
        if self._record is not None:
            self._record.close()
        if not self._keeps_record:
            for path in self._staged:
                with suppress(OSError, PathRefused):
                    self.folder.discard(path)
            if self._path is not None and self._record is not None:
                self._path.unlink(missing_ok=True)
        if isinstance(error, StorageFailed):
            raise MergeUndone(
                f"Nothing was merged into {self.root}: {error}. Make room and merge again."
            ) from error

    def reserve(self, directory: str) -> str:
        """Return the path of a new staged entry in a directory, after recording it.

        Raises:
            StorageFailed: The record cannot be written.
        """
        path = posixpath.join(directory, f".fanout-{self._token}{len(self._staged):08x}~")
        self._write(_Line(staged=path))
        self._staged.append(path)
        return path

    def commit(self, steps: Sequence[Step], files: Iterable[str] = ()) -> Left:
        """Put the staged entries in place, and return the changes that were left out.

        Args:
            steps: The steps that put them in place, in order.
            files: The staged files, which have to be on the disk before that.

        Raises:
            StorageFailed: The record cannot be written; nothing has changed.
            MergeUnfinished: The disk failed in the middle; the next merge continues.
        """
        if not steps:
            return {}
        try:
            for path in files:  # together, which takes a third of the time of one by one
                with suppress(FileNotFoundError):
                    self.folder.sync(path)
            self._write(_Line(steps=tuple(steps)))
            if self._record is not None and self._path is not None:
                os.fsync(self._record.fileno())
                _sync_folder(self._path.parent)
        except OSError as error:
            raise StorageFailed(error.strerror or str(error)) from error
        self._keeps_record = self._path is not None  # until all steps have been carried out
        try:
            left = carry_out(self.folder, steps)
        except StorageFailed as error:
            raise MergeUnfinished(
                f"The merge into {self.root} is not finished: {error}. The next merge or run in "
                "this folder finishes it."
            ) from error
        if self._path is not None:
            sync(self.folder, steps)
        self._keeps_record = False
        return left

    def _write(self, line: _Line) -> None:
        if self._path is None:
            return
        try:
            if self._record is None:
                make_private_folder(self._path.parent)
                self._path.unlink(missing_ok=True)
                self._record = create_private_file(self._path)
            self._record.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
            self._record.flush()
        except OSError as error:
            raise StorageFailed(
                f"{self._path.parent} cannot be written ({error.strerror})"
            ) from error


def recover(root: Path, record: Path) -> None:
    """Finish or undo the recorded merge; the folder's lock is held.

    Args:
        root: The folder.
        record: The file of the record.

    Raises:
        MergeUnfinished: The disk failed.
    """
    folder = RootedFolder(root)
    lines = list(_lines(record))
    try:
        for line in lines:
            if line.steps is not None:
                carry_out(folder, line.steps, again=True)
                sync(folder, line.steps)
    except StorageFailed as error:
        raise MergeUnfinished(
            f"A merge into {root} that was interrupted cannot be finished: {error}. Make room and "
            "repeat the command."
        ) from error
    for line in lines:
        if line.staged is not None and re.match(STAGED_NAME, posixpath.basename(line.staged)):
            with suppress(OSError, PathRefused):
                folder.discard(line.staged)
    record.unlink(missing_ok=True)


def _lines(record: Path) -> Iterator[_Line]:
    """Yield the complete lines of a record: a last one without an end was not written."""
    with suppress(FileNotFoundError):
        for text in record.read_bytes().split(b"\n")[:-1]:
            with suppress(ValidationError):
                yield _Line.model_validate_json(text)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StagedFolder(DryRun):
    """The target of one merge: `steps` puts its content in place.

    A new directory is staged with all that is in it, so that putting it in place is one rename.

    Args:
        staging: Creates the staged entries.
    """

    def __init__(self, staging: Staging) -> None:
        super().__init__(staging.folder)
        self._staging = staging
        self._real = staging.folder
        self._staged: dict[str, str] = {}
        """Path -> where its new entry is staged."""
        self._names: set[str] = set()
        self._seen: dict[str, Identity | None] = {}
        """Path -> the identity of the entry that is about to be replaced or removed."""
        self._group = ""
        self.steps: list[Step] = []
        self.files: set[str] = set()
        """The staged files; some may have been removed again."""

    def begin_group(self, path: str) -> None:
        """Begin the steps of the change of a path."""
        self._group = path

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory, after the changes so far."""
        return super().names(path) - self._names

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Plan the change of a file's permission bits."""
        self._expect(path, instead_of)
        self._changes[path] = replace(instead_of, mode=mode)
        if instead_of.identity:
            self._plan("mode", path, expected=instead_of.identity, mode=mode)

    def _expect(self, path: str, found: Found | None) -> None:
        """Compare without reading the file again, and record the identity that was seen."""
        if self._is_changed(path):
            super()._expect(path, found)
            return
        seen = None if found is None else found.identity
        if self._real.identity(path) != seen:
            raise ChangedMeanwhile
        self._seen[path] = seen

    def _record(self, path: str, found: Found | None) -> None:
        try:
            if found is None:
                self._remove(path)
            else:
                self._stage(path, found)
        except OSError as error:
            raise_if_storage(error)
            raise
        # The content is on the disk now: what is in memory does not depend on a bundle's size.
        self._changes[path] = None if found is None else replace(found, content=None)

    def _stage(self, path: str, found: Found) -> None:
        """Write a new entry into its staged directory, or next to its target."""
        directory, name = posixpath.split(path)
        above, seen = self._staged.get(directory), self._seen.pop(path, None)
        place = self._staged.get(path) or (f"{above}/{name}" if above else None)
        if path in self._staged:
            self._real.discard(self._staged[path])
        if place is None:
            place = self._staging.reserve(directory)
            staged = posixpath.basename(place)
            self._names.add(staged)
            self._plan("put", path, staged=staged, expected=seen)
        if found.kind == "directory":
            self._real.create_directory(place, found.mode)
        elif found.kind == "symlink":
            self._real.create_link(place, found.content or b"")
        else:
            replaced = name if seen is not None else None
            self._real.create_file(place, found.content or b"", found.mode, replaced)
            self.files.add(place)
        self._staged[path] = place

    def _remove(self, path: str) -> None:
        seen = self._seen.pop(path, None)
        if path in self._staged:
            self._real.discard(self._staged.pop(path))
            self.steps = [step for step in self.steps if (step.do, step.path) != ("put", path)]
            return
        self._real.require_writable(path)
        if seen is None:
            self._plan("remove_directory", path)
        else:
            self._plan("remove", path, expected=seen)

    def _plan(
        self,
        do: Do,
        path: str,
        *,
        staged: str | None = None,
        expected: Identity | None = None,
        mode: int = 0,
    ) -> None:
        step = Step(
            do=do, path=path, group=self._group, staged=staged, expected=expected, mode=mode
        )
        self.steps.append(step)
