"""Merge a job's changes into a folder: a workspace on this machine, or an agent's in its sandbox.

The three sides of the merge are the snapshot, the job's version and the file as it is now. A change
that somebody else made since the snapshot is never overwritten. A conflict leaves the file as it
is; the job's version stays in its change bundle, where `fanout diff` shows it. So does a change
that would become code on the host (`hold_back.py`), until a person says that it may land.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.git import GitFailed
from orchestrator.jobs.changes import (
    ChangeBundle,
    ChangedFile,
    ChangeKind,
    FileVersion,
    MalformedBundle,
    SkippedFile,
)
from orchestrator.jobs.spec import WireModel
from orchestrator.text_merge import is_text, marked_text
from orchestrator.workspace.dry_run import DryRun
from orchestrator.workspace.hold_back import HoldBack, code_of_folder, names_below
from orchestrator.workspace.rooted import (
    ChangedMeanwhile,
    Folder,
    Found,
    PathRefused,
    RootedFolder,
    check_path,
    current_umask,
)
from orchestrator.workspace.three_way import (
    ChangesCollide,
    ConflictKind,
    How,
    is_executable,
    is_same,
    settle,
)
from orchestrator.workspace.workspace import Workspace

_ATTEMPTS = 3
"""How often a file is merged again when another process changes it during its merge."""


class MergedFile(WireModel):
    """A change that the workspace contains now."""

    path: str
    change: ChangeKind
    how: How
    """`taken`: the job's version replaced an unchanged file; `already`: the workspace had the
    change before; `merged`: combined with changes made in the workspace."""


class Conflict(WireModel):
    """A change that conflicts with another one; the workspace keeps its own version."""

    path: str
    kind: ConflictKind
    reason: str
    """The two changes that conflict, in one sentence."""


class NotMerged(WireModel):
    """A change that was not applied, for another reason than a conflict."""

    path: str
    reason: str


class HeldBack(WireModel):
    """A change that was not applied, because the file becomes code on the host by itself."""

    path: str
    change: ChangeKind
    reason: str


class MergeReport(WireModel):
    """The outcome of each change of a bundle."""

    applied: tuple[MergedFile, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    refused: tuple[NotMerged, ...] = ()
    """The path or link leads out of the workspace, or the bundle is inconsistent."""
    failed: tuple[NotMerged, ...] = ()
    """An operating system error (a full disk, no permission): the file is unchanged, and another
    merge may succeed."""
    skipped: tuple[SkippedFile, ...] = ()
    """Changed by the job, but not contained in its bundle."""
    held_back: tuple[HeldBack, ...] = ()
    """Waits for a person's word: a merge with `include_executable_config` applies it."""

    @property
    def complete(self) -> bool:
        """Whether the workspace contains every change of the job now."""
        return not (self.conflicts or self.refused or self.failed or self.skipped or self.held_back)


@dataclass
class FolderMerge:
    """One merge of a bundle into a folder, without a lock on the folder; see `merge`."""

    folder: Folder
    bundle: ChangeBundle
    hold_back: HoldBack | None = None
    """None holds nothing back: in a sandbox, or by a person's word."""
    umask: int = 0o022
    """The bits that new files and directories do not get."""
    mark: str | None = None
    """The label of the job's side: a text that conflicts is written with both sides between
    conflict markers. None leaves it as it is."""
    applied: list[MergedFile] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    refused: list[NotMerged] = field(default_factory=list)
    failed: list[NotMerged] = field(default_factory=list)
    held_back: list[HeldBack] = field(default_factory=list)
    emptied: set[str] = field(default_factory=set)
    """Directories that lost a file."""

    def run(self) -> MergeReport:
        """Merge the bundle and return the outcome of each change; files that fail do not raise."""
        # Removals come first: a file may replace a directory, and a directory a file.
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
            held_back=tuple(sorted(self.held_back, key=lambda held: held.path)),
        )

    def _report(self, file: ChangedFile, merge_one: Callable[[ChangedFile], How]) -> None:
        """Merge one file, or hold it back, and record the outcome."""
        try:
            reason = self._why_held_back(file)
            if reason is not None:
                held = HeldBack(path=file.path, change=file.change, reason=reason)
                self.held_back.append(held)
                return
            how = _again_when_changed(file, merge_one)
            self.applied.append(MergedFile(path=file.path, change=file.change, how=how))
        except ChangesCollide as collision:
            self._conflict(file, collision.kind, collision.reason)
            if self.mark is not None:
                with suppress(OSError, GitFailed, ChangedMeanwhile, PathRefused, MalformedBundle):
                    self._write_marked(file, self.mark)
        except NotADirectoryError:
            self._conflict(file, "type", "The workspace has a file where the job has a directory.")
        except (PathRefused, MalformedBundle) as refusal:
            self.refused.append(NotMerged(path=file.path, reason=str(refusal)))
        except (OSError, GitFailed, ChangedMeanwhile) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            self.failed.append(NotMerged(path=file.path, reason=reason))

    def _why_held_back(self, file: ChangedFile) -> str | None:
        """Return why a change is held back; None if it is not, or if it has landed before."""
        if self.hold_back is None:
            return None
        for path in filter(None, (file.path, file.from_path)):
            check_path(path)  # what is refused is not offered
        reason = self.hold_back.why_file(file, self.bundle.content)
        return None if reason is None or self._has_landed(file) else reason

    def _has_landed(self, file: ChangedFile) -> bool:
        ours, after = self.folder.find(file.path), file.after
        if file.from_path is not None and self.folder.find(file.from_path) is not None:
            return False
        if ours is None or after is None:
            return ours is None and after is None
        return is_same(after, ours) and is_executable(after.mode) == is_executable(ours.mode)

    def _conflict(self, file: ChangedFile, kind: ConflictKind, reason: str) -> None:
        self.conflicts.append(Conflict(path=file.path, kind=kind, reason=reason))

    def _write_marked(self, file: ChangedFile, label: str) -> None:
        """Write both sides of a conflict into the file, if they are texts."""
        after, before = file.after, file.before
        path = file.from_path or file.path
        ours = self.folder.find(path) or self.folder.find(path := file.path)
        if ours is None or ours.content is None or after is None or ours.kind != after.kind:
            return
        base = self._content(before) if before is not None else b""
        sides = (base, ours.content, self._content(after))
        if after.kind == "file" and all(map(is_text, sides)):
            marked = marked_text(*sides, ("the files as they are", label))
            self.folder.put_file(path, marked, ours.mode, ours)

    def _write(self, file: ChangedFile) -> How:
        """Apply an addition or a modification."""
        before, after = file.before, _required(file.after)
        ours = self._here(file.path, before, after)
        if ours is None:
            if before is not None:
                raise ChangesCollide("deleted", "The job changed it; here it was deleted.")
            self._put(file.path, after, self._content(after), self._new_mode(after), None)
            return "taken"
        settled = settle(before, after, ours, self._content)
        if settled.content is not None:
            mode = settled.mode if ours.kind == after.kind else self._new_mode(after)
            self._put(file.path, after, settled.content, mode, ours)
        elif settled.mode != ours.mode:
            self.folder.set_mode(file.path, settled.mode, ours)
        return settled.how

    def _rename(self, file: ChangedFile) -> How:
        """Move the file at the old path, with the changes of both sides."""
        before, after = _required(file.before), _required(file.after)
        old_path = file.from_path or ""
        old, new = self.folder.find(old_path), self.folder.find(file.path)
        if old is None:  # renamed here as well, or merged before
            return self._write(file)
        settled = settle(before, after, old, self._content)
        content = old.content if settled.content is None else settled.content
        if content is None:
            raise ChangesCollide("binary", "The entry at the old path is not a file to move.")
        if new is None:
            self._put(file.path, after, content, settled.mode, None)
        elif new.content != content:
            raise ChangesCollide("rename", "The job moved a file to a path that has another one.")
        self.folder.remove(old_path, old)
        self.emptied.add(posixpath.dirname(old_path))
        return "taken" if is_same(before, old) else "merged"

    def _remove(self, file: ChangedFile) -> How:
        ours = self.folder.find(file.path)
        if ours is None or ours.kind == "directory":  # a directory has replaced the file
            return "already"
        if not is_same(_required(file.before), ours):
            raise ChangesCollide("deleted", "The job deleted it; here it was changed.")
        self.folder.remove(file.path, ours)
        self.emptied.add(posixpath.dirname(file.path))
        return "taken"

    def _remove_directory(self, file: ChangedFile) -> How:
        if not self._is_directory(file.path):
            return "already"
        if self.folder.names(file.path):
            raise ChangesCollide("directory", "The job deleted it; here it holds files.")
        self.folder.remove_directory(file.path)
        return "taken"

    def _here(self, path: str, before: FileVersion | None, after: FileVersion) -> Found | None:
        """Return the entry at the path; remove empty directories that a new file replaces."""
        ours = self.folder.find(path)
        blocks = ours is not None and ours.kind == "directory" and after.kind != "directory"
        if blocks and (before is None or before.kind == "directory") and self._is_vacant(path):
            self._clear(path)
            return None
        return ours

    def _is_vacant(self, path: str) -> bool:
        """Whether a directory contains nothing but directories."""
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
        """Replace the entry at the path."""
        if after.kind == "file":
            self.folder.put_file(path, content, mode, ours)
        elif after.kind == "symlink":
            self.folder.put_link(path, content, ours)
        else:
            if ours is not None and ours.kind != "directory":
                self.folder.remove(path, ours)
            self.folder.put_directory(path, self._new_mode(after))

    def _new_mode(self, after: FileVersion) -> int:
        """Return the mode of a new entry: of what the job says, only whether it is executable."""
        is_open = after.kind == "directory" or is_executable(after.mode)
        return (0o755 if is_open else 0o644) & ~self.umask

    def _content(self, version: FileVersion) -> bytes:
        """Return one side's content, checked against its hash."""
        if version.kind == "directory":
            return b""
        try:
            content = self.bundle.content(version)
        except (tarfile.TarError, EOFError) as error:
            raise MalformedBundle("The bundle is damaged.") from error
        if hashlib.sha256(content).hexdigest() != version.sha256:
            raise MalformedBundle("A content of the bundle does not match its hash.")
        return content

    def _prune(self, kept: set[str]) -> None:
        """Remove directories that became empty, as Git does, except those that the job has."""
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
    """Merge a file again, a few times, when another process changes it during its merge."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(ChangedMeanwhile):
            return merge_one(file)
    return merge_one(file)


def _without_nesting(file: ChangedFile) -> Iterator[ChangedFile]:
    """Split a rename from `a` to `a/b`, or back, into two changes: both paths cannot coexist."""
    old, new = file.from_path, file.path
    if old is None or not (new.startswith(f"{old}/") or old.startswith(f"{new}/")):
        yield file
        return
    yield ChangedFile(path=old, change=ChangeKind.DELETED, before=file.before)
    yield ChangedFile(path=new, change=ChangeKind.ADDED, after=file.after)


def _was_directory(file: ChangedFile) -> bool:
    return file.before is not None and file.before.kind == "directory"


def _required(version: FileVersion | None) -> FileVersion:
    """Return a side that this kind of change must have."""
    if version is None:
        raise MalformedBundle("The bundle lacks a side of this change.")
    return version


async def merge(
    workspace: Workspace,
    bundle: ChangeBundle,
    *,
    check: bool = False,
    include_executable_config: bool = False,
) -> MergeReport:
    """Merge a bundle's changes into the workspace; a repeated merge changes nothing.

    Each file is replaced as a whole or not at all.

    Args:
        workspace: The folder; no snapshot or other merge uses it meanwhile.
        bundle: The changes of one job.
        check: Write nothing, and report what a merge would do.
        include_executable_config: Apply also what becomes code on the host: only a person may say
            so, never an agent.

    Raises:
        WorkspaceUnusable: The folder does not exist.
    """

    def run() -> MergeReport:
        folder = (DryRun if check else RootedFolder)(workspace.root)
        rule = None if include_executable_config else _hold_back(workspace.root, bundle)
        return FolderMerge(folder, bundle, rule, current_umask()).run()

    return await workspace.alone(run)


def _hold_back(root: Path, bundle: ChangeBundle) -> HoldBack:
    arriving = [file.path for file in bundle.changes.files if file.after is not None]
    return HoldBack(names_below(root), code_of_folder(root), arriving)
