"""The merge itself, over any folder: a workspace on this machine, or an agent's in its sandbox.

Nothing that somebody changed since the snapshot is ever overwritten. A conflict leaves the file as
it is here; the job's version stays in its change bundle, where `fanout diff` shows it.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.jobs.changes import (
    ChangeBundle,
    ChangedFile,
    ChangeKind,
    FileVersion,
    MalformedBundle,
    SkippedFile,
)
from orchestrator.jobs.spec import WireModel
from orchestrator.text_merge import GitFailed
from orchestrator.workspace.rooted import ChangedMeanwhile, Found, PathRefused
from orchestrator.workspace.three_way import ChangesCollide, ConflictKind, How, is_same, settle

_ATTEMPTS = 3
"""How often a file that somebody changes while we merge it is looked at."""


class MergedFile(WireModel):
    """A change that is in the workspace now."""

    path: str
    change: ChangeKind
    how: How
    """`taken`: nobody else had touched it; `already`: it was there; `merged`: with changes made
    here."""


class Conflict(WireModel):
    """A change that meets another one; the workspace keeps its own version."""

    path: str
    kind: ConflictKind
    reason: str
    """What met what, in a sentence."""


class NotMerged(WireModel):
    """A change that was not put in, for another reason than a conflict."""

    path: str
    reason: str


class MergeReport(WireModel):
    """What became of each change of a bundle."""

    applied: tuple[MergedFile, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    refused: tuple[NotMerged, ...] = ()
    """The path or link leaves the workspace, or the bundle contradicts itself."""
    failed: tuple[NotMerged, ...] = ()
    """The system failed (a full disk, no permission): the file is as it was, and merging again may
    help."""
    skipped: tuple[SkippedFile, ...] = ()
    """Changed by the job, and not carried by its bundle."""

    @property
    def complete(self) -> bool:
        """Whether every change of the job is in the workspace now."""
        return not (self.conflicts or self.refused or self.failed or self.skipped)


class Folder(Protocol):
    """The files that are merged into, by relative paths.

    `RootedFolder` says what each method means.
    """

    def find(self, path: str) -> Found | None:
        """What stands at the path."""
        ...

    def names(self, path: str) -> frozenset[str]:
        """The names in a directory; empty when there is none."""
        ...

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Put a whole file in place."""
        ...

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Put a symlink in place."""
        ...

    def put_directory(self, path: str, mode: int) -> None:
        """Make a directory."""
        ...

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Change a file's permission bits."""
        ...

    def remove(self, path: str, instead_of: Found) -> None:
        """Remove a file or a link."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...


@dataclass
class FolderMerge:
    """One merge of a bundle into a folder; see `orchestrator.workspace.merge`."""

    folder: Folder
    bundle: ChangeBundle
    applied: list[MergedFile] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    refused: list[NotMerged] = field(default_factory=list)
    failed: list[NotMerged] = field(default_factory=list)
    emptied: set[str] = field(default_factory=set)
    """Directories that lost a file."""

    def run(self) -> MergeReport:
        """Merge. Removals come first.

        A file may take a directory's place and the other way round.
        """
        files = [part for file in self.bundle.changes.files for part in _without_nesting(file)]
        for file in files:
            if file.after is None and not _was_directory(file):
                self._report(file, self._remove)
        for file in files:
            if file.after is not None:
                self._report(file, self._write if file.from_path is None else self._rename)
        for file in reversed(files):
            if file.after is None and _was_directory(file):
                self._report(file, self._remove_directory)
        self._prune(kept={file.path for file in files if file.after is not None})
        return MergeReport(
            applied=tuple(sorted(self.applied, key=lambda merged: merged.path)),
            conflicts=tuple(sorted(self.conflicts, key=lambda conflict: conflict.path)),
            refused=tuple(self.refused),
            failed=tuple(self.failed),
            skipped=self.bundle.changes.skipped,
        )

    def _report(self, file: ChangedFile, merge_one: Callable[[ChangedFile], How]) -> None:
        """Merge one file and note what came of it."""
        try:
            how = _again_when_changed(file, merge_one)
            self.applied.append(MergedFile(path=file.path, change=file.change, how=how))
        except ChangesCollide as collision:
            self._conflict(file, collision.kind, collision.reason)
        except NotADirectoryError:
            self._conflict(file, "type", "A file stands here where the job has a directory.")
        except (PathRefused, MalformedBundle) as refusal:
            self.refused.append(NotMerged(path=file.path, reason=str(refusal)))
        except (OSError, GitFailed, ChangedMeanwhile) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            self.failed.append(NotMerged(path=file.path, reason=reason))

    def _conflict(self, file: ChangedFile, kind: ConflictKind, reason: str) -> None:
        self.conflicts.append(Conflict(path=file.path, kind=kind, reason=reason))

    def _write(self, file: ChangedFile) -> How:
        """Put in what the job added or changed."""
        before, after = file.before, _given(file.after)
        ours = self._here(file.path, before, after)
        if ours is None:
            if before is not None:
                raise ChangesCollide("deleted", "The job changed it; here it was deleted.")
            self._put(file.path, after, self._content(after), after.mode, None)
            return "taken"
        settled = settle(before, after, ours, self._content)
        if settled.content is not None:
            self._put(file.path, after, settled.content, settled.mode, ours)
        elif settled.mode != ours.mode:
            self.folder.set_mode(file.path, settled.mode, ours)
        return settled.how

    def _rename(self, file: ChangedFile) -> How:
        """Move what stands at the old path, with what was changed in it here and there."""
        before, after, old_path = _given(file.before), _given(file.after), file.from_path or ""
        old, new = self.folder.find(old_path), self.folder.find(file.path)
        if old is None:  # renamed here as well, or merged before
            return self._write(file)
        settled = settle(before, after, old, self._content)
        content = old.content if settled.content is None else settled.content
        if content is None:
            raise ChangesCollide(
                "binary", "What stands at the old path is no file that could be moved."
            )
        if new is None:
            self._put(file.path, after, content, settled.mode, None)
        elif new.content != content:
            raise ChangesCollide("rename", "The job moved a file here, where another one stands.")
        self.folder.remove(old_path, old)
        self.emptied.add(posixpath.dirname(old_path))
        return "taken" if is_same(before, old) else "merged"

    def _remove(self, file: ChangedFile) -> How:
        ours = self.folder.find(file.path)
        if ours is None or ours.kind == "directory":  # the file is gone, whatever took its place
            return "already"
        if not is_same(_given(file.before), ours):
            raise ChangesCollide("deleted", "The job deleted it; here it was changed.")
        self.folder.remove(file.path, ours)
        self.emptied.add(posixpath.dirname(file.path))
        return "taken"

    def _remove_directory(self, file: ChangedFile) -> How:
        ours = self.folder.find(file.path)
        if ours is None or ours.kind != "directory":
            return "already"
        if self.folder.names(file.path):
            raise ChangesCollide("directory", "The job deleted it; here it holds files.")
        self.folder.remove_directory(file.path)
        return "taken"

    def _here(self, path: str, before: FileVersion | None, after: FileVersion) -> Found | None:
        """What stands at the path.

        Empty directories make way for a file that was not there before.
        """
        ours = self.folder.find(path)
        is_in_the_way = ours is not None and ours.kind == "directory" and after.kind != "directory"
        if (
            is_in_the_way
            and (before is None or before.kind == "directory")
            and self._is_vacant(path)
        ):
            self._clear(path)
            return None
        return ours

    def _is_vacant(self, path: str) -> bool:
        """Whether a directory holds nothing but directories."""
        below = [f"{path}/{name}" for name in self.folder.names(path)]
        return all(self._is_directory(name) and self._is_vacant(name) for name in below)

    def _clear(self, path: str) -> None:
        for name in self.folder.names(path):
            self._clear(f"{path}/{name}")
        self.folder.remove_directory(path)

    def _is_directory(self, path: str) -> bool:
        found = self.folder.find(path)
        return found is not None and found.kind == "directory"

    def _put(
        self, path: str, after: FileVersion, content: bytes, mode: int, ours: Found | None
    ) -> None:
        """Make the path what it becomes, instead of what stands there."""
        if after.kind == "file":
            self.folder.put_file(path, content, mode, ours)
        elif after.kind == "symlink":
            self.folder.put_link(path, content, ours)
        else:
            if ours is not None and ours.kind != "directory":
                self.folder.remove(path, ours)
            self.folder.put_directory(path, mode)

    def _content(self, version: FileVersion) -> bytes:
        """One side's content, if it is what the bundle says it is."""
        if version.kind == "directory":
            return b""
        try:
            content = self.bundle.content(version)
        except (tarfile.TarError, EOFError) as error:
            raise MalformedBundle("The bundle is damaged.") from error
        if hashlib.sha256(content).hexdigest() != version.sha256:
            raise MalformedBundle("The bundle holds other content than it says.")
        return content

    def _prune(self, kept: set[str]) -> None:
        """Remove the directories that removals emptied, as Git does, unless the job keeps them."""
        for directory in sorted(self.emptied, key=len, reverse=True):
            with suppress(OSError, PathRefused):
                self._prune_upwards(directory, kept)

    def _prune_upwards(self, directory: str, kept: set[str]) -> None:
        while directory and directory not in kept:
            if not self._is_directory(directory) or self.folder.names(directory):
                return
            self.folder.remove_directory(directory)
            directory = posixpath.dirname(directory)


def _again_when_changed(file: ChangedFile, merge_one: Callable[[ChangedFile], How]) -> How:
    """Look again at a file that changed while it was merged, a few times."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(ChangedMeanwhile):
            return merge_one(file)
    return merge_one(file)


def _without_nesting(file: ChangedFile) -> Iterator[ChangedFile]:
    """The change, or a rename from `a` to `a/b` or back as two: both paths cannot stand at once."""
    old, new = file.from_path, file.path
    if old is None or not (new.startswith(f"{old}/") or old.startswith(f"{new}/")):
        yield file
        return
    yield ChangedFile(path=old, change=ChangeKind.DELETED, before=file.before)
    yield ChangedFile(path=new, change=ChangeKind.ADDED, after=file.after)


def _was_directory(file: ChangedFile) -> bool:
    return file.before is not None and file.before.kind == "directory"


def _given(version: FileVersion | None) -> FileVersion:
    """A side that this kind of change must have."""
    if version is None:
        raise MalformedBundle("The bundle lacks a side of this change.")
    return version
