"""Merge a job's changes into a folder: a workspace on this machine, or an agent's in its sandbox.

The three sides of the merge are the snapshot, the job's version and the file as it is now. A change
that was made since the snapshot is never overwritten. A conflict leaves the file unchanged; the
job's version stays in its change bundle, where `fanout diff` shows it. A change that would become
code on the host (`hold_back.py`) stays there too, until a person permits it.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..git.attributes import (
    ATTRIBUTES_FILE,
    MAX_ATTRIBUTES_BYTES,
    PLAIN,
    MergeRule,
    PersonalMergeSettings,
    attribute_folders,
    merge_rules,
)
from ..git.patches import RENAME_CANDIDATES, find_renamed
from ..git.process import GitFailed
from ..git.stored_text import MergeTexts
from ..git.text_merge import is_text, marked_text
from ..jobs.changes import (
    ChangeBundle,
    ChangedFile,
    FileVersion,
    MalformedBundle,
)
from .dry_run import DryRun
from .hold_back import HoldBack, find_hold_back
from .merge_report import (
    Conflict,
    HeldBack,
    MergedFile,
    MergeReport,
    NotMerged,
)
from .repositories.merge_settings import personal_merge_settings
from .repositories.repository import added_files
from .rooted import (
    ChangedMeanwhile,
    Folder,
    Found,
    PathRefused,
    RootedFolder,
    check_path,
    current_umask,
    is_inside,
)
from .staged_merge import Left, StagedFolder, Staging
from .three_way import (
    ChangesCollide,
    How,
    in_order,
    is_executable,
    is_same,
    merge_texts_by,
    settle,
)
from .workspace import Workspace

_ATTEMPTS = 3
"""How often a file is merged again when another process changes it during its merge."""


@dataclass
class FolderMerge:
    """One merge of a bundle into a folder, without a lock on the folder; see `merge`."""

    folder: Folder
    bundle: ChangeBundle
    hold_back: HoldBack | None = None
    """The rule that holds changes back. None: nothing is held back, in a sandbox or with a person's
    permission."""
    umask: int = 0o022
    """The bits that new files and directories do not get."""
    mark: str | None = None
    """The label of the job's side: a text that conflicts is written with both sides between
    conflict markers. None: the text stays unchanged."""
    on_file: Callable[[str], None] = lambda _path: None
    """Called with the path of each change before it is merged."""
    applied: list[MergedFile] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    refused: list[NotMerged] = field(default_factory=list)
    failed: list[NotMerged] = field(default_factory=list)
    held_back: list[HeldBack] = field(default_factory=list)
    emptied: set[str] = field(default_factory=set)
    """Directories that lost a file."""
    personal: PersonalMergeSettings | None = None
    """The merge settings that the owner of the folder has configured; None in a sandbox."""
    added: Callable[[], Iterable[str]] = tuple
    """Returns the files of the folder that are missing in the checked-out commit. A deleted file
    may have been renamed to one of them."""
    _rules: dict[str, MergeRule] = field(default_factory=dict)
    _attributes: dict[str, bytes] = field(default_factory=dict)
    """The attribute files that were read, by path."""
    _seen_attributes: set[str] = field(default_factory=set)
    """The paths where an attribute file was looked for."""

    def _rule(self, path: str) -> MergeRule:
        """Return how a file is merged; the attributes are those before the merge."""
        if path not in self._rules:
            paths = {path, *self._paths()} - self._rules.keys()
            for folder in attribute_folders(paths):
                self._read_attributes(posixpath.join(folder, ATTRIBUTES_FILE))
            found = merge_rules(self._attributes, paths, self.personal)
            self._rules |= {one: found.get(one, PLAIN) for one in paths}
        return self._rules[path]

    def _paths(self) -> set[str]:
        """Return the paths of all changes, old ones of renamed files too."""
        return {
            path
            for file in self.bundle.changes.files
            for path in (file.path, file.from_path)
            if path and is_inside(path)
        }

    def _read_attributes(self, path: str) -> None:
        """Read an attribute file, unless that was done: the job may have changed it since."""
        if path in self._seen_attributes:
            return
        self._seen_attributes.add(path)
        with suppress(OSError, PathRefused):
            found = self.folder.find(path)
            content = found.content if found and found.kind == "file" else None
            if content is not None and len(content) <= MAX_ATTRIBUTES_BYTES:
                self._attributes[path] = content

    def _merge_texts(self, path: str) -> MergeTexts:
        """Return what merges the texts of a file; attributes are read when it is called."""

        def merge(base: bytes | None, ours: bytes, theirs: bytes) -> bytes | None:
            place = self.personal or PersonalMergeSettings(Path("/"))
            merge_texts = merge_texts_by(self._rule(path), place.folder, place.prefix + path)
            return merge_texts(base, ours, theirs)

        return merge

    def run(self) -> MergeReport:
        """Merge the bundle and return the outcome of each change; files that fail do not raise."""
        for path in self._paths():
            if posixpath.basename(path) == ATTRIBUTES_FILE:
                self._rule(path)  # read before the job's changes of them are in
        files = in_order(self.bundle.changes.files)
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
        self.on_file(file.path)
        try:
            reason = self._why_held_back(file)
            if reason is not None:
                held = HeldBack(path=file.path, change=file.change, reason=reason)
                self.held_back.append(held)
                return
            how = _again_when_changed(file, merge_one)
            self.applied.append(MergedFile(path=file.path, change=file.change, how=how))
        except ChangesCollide as collision:
            kind, reason = collision.kind, collision.reason
            self.conflicts.append(Conflict(path=file.path, kind=kind, reason=reason))
            if self.mark is not None:
                with suppress(OSError, GitFailed, ChangedMeanwhile, PathRefused, MalformedBundle):
                    self._write_marked(file, self.mark)
        except NotADirectoryError:
            reason = "The workspace has a file where the job has a directory."
            self.conflicts.append(Conflict(path=file.path, kind="type", reason=reason))
        except (PathRefused, MalformedBundle) as refusal:
            self.refused.append(NotMerged(path=file.path, reason=str(refusal)))
        except (OSError, GitFailed, ChangedMeanwhile) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            self.failed.append(NotMerged(path=file.path, reason=reason))

    def _why_held_back(self, file: ChangedFile) -> str | None:
        """Return why a change is held back; None if it is not, or if it was merged before."""
        if self.hold_back is None:
            return None
        for path in filter(None, (file.path, file.from_path)):
            check_path(path)  # a refused change is not offered
        reason = self.hold_back.why_file(file, self.bundle.content)
        return None if reason is None or self._has_landed(file) else reason

    def _has_landed(self, file: ChangedFile) -> bool:
        ours, after = self.folder.find(file.path), file.after
        if file.from_path is not None and self.folder.find(file.from_path) is not None:
            return False
        if ours is None or after is None:
            return ours is None and after is None
        return is_same(after, ours) and is_executable(after.mode) == is_executable(ours.mode)

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
            size = self._rule(path).marker_size
            marked = marked_text(*sides, ("the files as they are", label), size)
            self.folder.put_file(path, marked, ours.mode, ours)

    def _write(self, file: ChangedFile) -> How:
        """Apply an addition or a modification."""
        before, after = file.before, _required(file.after)
        try:
            ours = self._here(file.path, before, after)
        except PathRefused:
            if before is None or not is_inside(file.path):
                raise
            if self._renamed_here(file.path, before, after) is None:
                raise
            ours = None  # a link is in place of the folder that was renamed
        if ours is None:
            if before is not None:
                return self._write_where_renamed(file, before, after)
            self._put(file.path, after, self._content(after), self._new_mode(after), None)
            return "taken"
        settled = settle(before, after, ours, self._content, self._merge_texts(file.path))
        if settled.content is not None:
            mode = settled.mode if ours.kind == after.kind else self._new_mode(after)
            self._put(file.path, after, settled.content, mode, ours)
        elif settled.mode != ours.mode:
            self.folder.set_mode(file.path, settled.mode, ours)
        return settled.how

    def _write_where_renamed(
        self, file: ChangedFile, before: FileVersion, after: FileVersion
    ) -> How:
        """Apply a change of a file that has another name here."""
        old_path = file.from_path or file.path
        path = self._renamed_here(old_path, before, after)
        if path is None:
            raise ChangesCollide("deleted", "The job changed it; here it was deleted.")
        if file.from_path is not None:
            raise ChangesCollide("rename", f"The job renamed {old_path}; here it became {path}.")
        if self.hold_back is not None and self.hold_back.why(path) is not None:
            raise ChangesCollide(
                "rename", f"Here it became {path}, which only a person may change."
            )
        return self._write(file.model_copy(update={"path": path, "before": before, "after": after}))

    def _renamed_here(self, path: str, *versions: FileVersion) -> str | None:
        """Return the path that a file or a link of the snapshot has here, as Git finds renames.

        Only added ones are candidates.

        Args:
            path: Its path in the snapshot.
            versions: Its version in the snapshot, and the job's: here it may have that already.
        """
        own = {file.path for file in self.bundle.changes.files if file.after is not None}
        added = sorted(one for one in self.added() if one not in own and is_inside(one))
        found = {one: self.folder.find(one) for one in added[:RENAME_CANDIDATES]}
        contents = {
            one: here.content
            for one, here in found.items()
            if here is not None and here.kind == versions[0].kind and here.content is not None
        }
        renamed = (find_renamed(path, self._content(one), contents) for one in versions)
        return next(filter(None, renamed), None)

    def _moved_here(self, path: str, before: FileVersion) -> str | None:
        """Return the path to which a file was moved here without another change.

        A similar file might be a different one, if the deletion was merged before.
        """
        moved = self._renamed_here(path, before)
        here = self.folder.find(moved) if moved is not None else None
        return moved if here is not None and is_same(before, here) else None

    def _rename(self, file: ChangedFile) -> How:
        """Move the file at the old path, with the changes of both sides."""
        before, after = _required(file.before), _required(file.after)
        old_path = file.from_path or ""
        old = self._moved_from(old_path)
        if old is None:  # renamed here as well, or merged before
            return self._write(file)
        settled = settle(before, after, old, self._content, self._merge_texts(file.path))
        content = old.content if settled.content is None else settled.content
        if content is None:
            raise ChangesCollide("binary", "The entry at the old path is not a file to move.")
        new = self._here(file.path, None, after)
        if new is None:
            self._put(file.path, after, content, settled.mode, None)
        elif (new.kind, new.sha256) != ("file", hashlib.sha256(content).hexdigest()):
            raise ChangesCollide("rename", "The job moved a file to a path that has another one.")
        self.folder.remove(old_path, old)
        self.emptied.add(posixpath.dirname(old_path))
        return "taken" if is_same(before, old) else "merged"

    def _moved_from(self, path: str) -> Found | None:
        """Return the file at the old path of a rename; None if it is gone.

        Then a directory, or a link to one, may have taken its place.
        """
        check_path(path)
        with suppress(PathRefused):  # it leads through a link
            found = self.folder.find(path)
            return None if found is not None and found.kind == "directory" else found
        return None

    def _remove(self, file: ChangedFile) -> How:
        ours = self.folder.find(file.path)
        if ours is None and (path := self._moved_here(file.path, _required(file.before))):
            raise ChangesCollide("rename", f"The job deleted it; here it became {path}.")
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
        """Return the mode of a new entry; the job only decides whether it is executable."""
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

    Either all changes get into the folder, or none if the disk is full. A merge whose process is
    killed is finished or undone by the next merge or snapshot, if the workspace has a place for
    records.

    Args:
        workspace: The folder; no snapshot or other merge uses it meanwhile.
        bundle: The changes of one job.
        check: Write nothing, and report what a merge would do.
        include_executable_config: Also apply changes that become code on the host: only a person
            may permit that, never an agent.

    Raises:
        WorkspaceUnusable: The folder does not exist.
        MergeUndone: The changes could not be written; the folder is unchanged.
        MergeUnfinished: They were written, and not all of them could be moved to their places.
    """

    def run() -> MergeReport:
        root = workspace.root
        rule = None if include_executable_config else find_hold_back(root, bundle)
        umask, personal = current_umask(), personal_merge_settings(root)
        added = partial(added_files, root)
        if check:
            folder = DryRun(RootedFolder(root))
            return FolderMerge(folder, bundle, rule, umask, personal=personal, added=added).run()

        def merge_round() -> tuple[MergeReport, Left]:
            with Staging(root, workspace.record) as staging:
                folder = StagedFolder(staging)
                report = FolderMerge(
                    folder,
                    bundle,
                    rule,
                    umask,
                    on_file=folder.begin_group,
                    personal=personal,
                    added=added,
                ).run()
                return report, staging.commit(folder.steps, folder.files)

        return _in_rounds(merge_round)

    return await workspace.alone(run)


def _in_rounds(merge_round: Callable[[], tuple[MergeReport, Left]]) -> MergeReport:
    """Merge again what other processes changed between the plan and its execution."""
    how: dict[str, How] = {}
    for _ in range(_ATTEMPTS):
        report, left = merge_round()
        applied = [
            one.model_copy(update={"how": how.get(one.path, one.how)})
            for one in report.applied
            if one.path not in left
        ]
        how |= {one.path: one.how for one in applied}
        if None not in left.values():
            break
    failed = [
        NotMerged(path=path, reason=reason or str(ChangedMeanwhile()))
        for path, reason in left.items()
    ]
    return report.model_copy(
        update={"applied": tuple(applied), "failed": (*report.failed, *failed)}
    )
