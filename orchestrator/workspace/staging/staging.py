"""One staged merge: from its first new content to the last rename, or back to the beginning.

A record outside of the folder names every staged entry before it is created, and, when all are on
the disk, the steps that put them in place. So what a killed process leaves behind is known: without
steps the staged entries are removed, with steps they are carried out (`recover`). Whoever uses it
holds the folder's lock.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic import ValidationError

from fanout.orchestrator.jobs.spec import WireModel
from fanout.orchestrator.private_files import create_private_file, make_private_folder
from fanout.orchestrator.workspace.rooted import PathRefused, RootedFolder
from fanout.orchestrator.workspace.staging.failures import (
    MergeUndone,
    MergeUnfinished,
    StorageFailed,
)
from fanout.orchestrator.workspace.staging.steps import STAGED_NAME, Left, Step, carry_out, sync

__all__ = ["Left", "Staging", "record_path", "recover"]


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
        record: The file of the record; None: a merge whose process is killed stays as it is.

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
        """Return it."""
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
        """Put what is staged in place, and return the changes that were left out.

        Args:
            steps: What puts it in place, in order.
            files: The staged files, which have to be on the disk before that.

        Raises:
            StorageFailed: The record cannot be written; nothing has changed.
            MergeUnfinished: The disk failed in the middle; the next merge goes on.
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
    """Finish or undo the merge that a record is about; the folder's lock is held.

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
