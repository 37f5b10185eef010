"""The files of a commit as a folder that changes are merged into."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fanout.orchestrator.jobs.changes import ChangeBundle, ChangedFile
from fanout.orchestrator.path_text import os_path, path_bytes, path_text
from fanout.orchestrator.text_merge import is_text
from fanout.orchestrator.workspace.repositories.commits import Commits, NewCommits, TreeEntry
from fanout.orchestrator.workspace.rooted import Found, PathRefused, check_path, is_inside
from fanout.orchestrator.workspace.three_way import is_executable

Entries = Mapping[str, TreeEntry | None]
"""Path text in the repository -> its entry; None: it has none."""

MAX_KEPT_BYTES = 64 * 1024**2
"""Of contents that are kept for the next bundle: those of a usual landing."""

_LINK, _SUBMODULE = "120000", "160000"


@dataclass(frozen=True)
class Mark:
    """A state of a tree, which later changes can be compared with."""

    position: int


class CommitTree:
    """The files of a commit below a workspace, and the changes to them so far.

    Lines that end with CRLF in a work tree, and with LF in the commit, are shown as in the work
    tree, and written as in the commit.

    Args:
        commits: The repository.
        commit: The commit.
        workspace: The folder whose files the paths are relative to.
        new: The commits that become of the changes.
    """

    def __init__(self, commits: Commits, commit: str, workspace: str, new: NewCommits) -> None:
        self._commits = commits
        self._new = new
        top = str(commits.repository.work_tree)
        inner = posixpath.relpath(workspace, top)
        self._prefix = "" if inner == "." else f"{path_text(inner)}/"
        self._workspace = workspace
        self._entries: dict[str, TreeEntry] = {}
        self._below: dict[str, set[str]] = {}
        self._log: list[tuple[str, TreeEntry | None]] = []
        self._filtered: dict[str, str] = {}
        self._asked: set[str] = set()
        """The paths whose filters are known."""
        self._crlf: set[str] = set()
        self._blobs: dict[str, bytes] = {}
        for path, entry in commits.read(commit).items():
            self._set(path, entry)
        self._committed = frozenset(self._entries)
        self._converts = commits.settings.get("core.autocrlf") in {"true", "input"}

    def prepare(self, bundle: ChangeBundle) -> None:
        """Read what a merge of a bundle needs, with few processes."""
        files = bundle.changes.files
        paths = {path for file in files for path in (file.path, file.from_path) if path}
        full = {self._prefix + path: path for path in filter(is_inside, paths)}
        unknown = {path: own for path, own in full.items() if path not in self._asked}
        if unknown:  # a child's paths are mostly those of its parent
            filtered = self._commits.filtered(unknown)
            self._filtered |= {unknown[path]: name for path, name in filtered.items()}
            self._asked |= unknown.keys()
        entries = [self._entries[path] for path in full if path in self._entries]
        self._keep_blobs([entry.id for entry in entries if entry.mode != _SUBMODULE])
        self._crlf = set()
        for file in files:
            if self._is_converted(file, bundle):
                self._crlf |= {file.path, file.from_path or file.path}

    def find(self, path: str) -> Found | None:
        """Return the entry at the path.

        Raises:
            PathRefused: It cannot be part of a commit of this repository.
        """
        self._require_own(path)
        entry = self._entries.get(self._prefix + path)
        if entry is None:
            is_directory = self._prefix + path in self._below
            return Found(kind="directory", mode=0o755) if is_directory else None
        if entry.mode == _SUBMODULE:
            raise PathRefused(_IN_ANOTHER.format(path))
        content = self._content(entry)
        if path in self._crlf:
            content = content.replace(b"\n", b"\r\n")
        return Found(
            kind="symlink" if entry.mode == _LINK else "file",
            mode=int(entry.mode[-3:], 8) or 0o777,
            sha256=hashlib.sha256(content).hexdigest(),
            content=content,
        )

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory; empty when it does not exist."""
        return frozenset(self._below.get((self._prefix + path).rstrip("/"), ()))

    def added(self) -> list[str]:
        """Return the files that the commit lacks."""
        return [
            path.removeprefix(self._prefix)
            for path in self._entries.keys() - self._committed
            if path.startswith(self._prefix)
        ]

    def mark(self) -> Mark:
        """Return the state as it is now."""
        return Mark(len(self._log))

    def entries_for(self, changes: Mapping[str, Found | None]) -> dict[str, TreeEntry | None]:
        """Store the new contents of merged files, and return the entries that they become."""
        kept = {
            path: found for path, found in changes.items() if found and found.content is not None
        }
        entries: dict[str, TreeEntry | None] = {
            self._prefix + path: TreeEntry(
                _mode(found), self._new.add_blob(self._written(path, found.content or b""))
            )
            for path, found in kept.items()
        }
        for path in changes.keys() - kept.keys():
            if (full := self._prefix + path) in self._entries:
                entries[full] = None
        return entries

    def moved_to(self, start: Mark, target: Entries) -> dict[str, TreeEntry | None]:
        """Change the tree to what it was at a mark with some changes; return what differed."""
        wanted = dict(reversed(self._log[start.position :])) | dict(target)
        changed = {
            path: entry for path, entry in wanted.items() if self._entries.get(path) != entry
        }
        for path in sorted(changed, key=lambda path: changed[path] is not None):
            self._log.append((path, self._entries.get(path)))
            self._set(path, changed[path])
        return changed

    def _set(self, path: str, entry: TreeEntry | None) -> None:
        if entry is not None:
            self._entries[path] = entry
        else:
            self._entries.pop(path, None)
        while path:
            directory, name = posixpath.split(path)
            names = self._below.setdefault(directory, set())
            if entry is not None:
                if name in names:
                    return
                names.add(name)
            else:
                names.discard(name)
                if names:
                    return
                del self._below[directory]
            path = directory

    def _keep_blobs(self, ids: Collection[str]) -> None:
        """Keep the contents of blobs, and forget others if they are too many."""
        known = {one: content for one in ids if (content := self._blob(one)) is not None}
        if sum(map(len, self._blobs.values())) > MAX_KEPT_BYTES:
            self._blobs = known
        missing = [one for one in ids if one not in known]
        self._blobs |= known | (self._commits.blobs(missing) if missing else {})

    def _blob(self, identity: str) -> bytes | None:
        kept = self._blobs.get(identity)
        return kept if kept is not None else self._new.content(identity)

    def _content(self, entry: TreeEntry) -> bytes:
        if entry.id not in self._blobs:
            self._keep_blobs([entry.id])
        return self._blobs[entry.id]

    def _written(self, path: str, content: bytes) -> bytes:
        is_new = self._prefix + path not in self._entries
        if path in self._crlf or (is_new and self._converts and is_text(content)):
            return content.replace(b"\r\n", b"\n")
        return content

    def _is_converted(self, file: ChangedFile, bundle: ChangeBundle) -> bool:
        """Return whether the work tree has CRLF where the commit has LF."""
        entry = self._entries.get(self._prefix + (file.from_path or file.path))
        if file.before is None or file.before.kind != "file" or entry is None:
            return False
        ours = self._blobs.get(entry.id, b"")
        if b"\n" not in ours or b"\r" in ours or not is_text(ours):
            return False
        theirs = bundle.content(file.before)
        return (
            b"\r\n" in theirs and is_text(theirs) and theirs.count(b"\n") == theirs.count(b"\r\n")
        )

    def _require_own(self, path: str) -> None:
        names = check_path(path)
        if b"\\" in path_bytes(path):
            raise PathRefused("Git keeps no name with a backslash.")
        if path in self._filtered:
            raise PathRefused(
                f"Git runs a filter on it ({self._filtered[path]}), which a landing never starts: "
                "merge it into the work tree and commit it there."
            )
        for count in range(1, len(names)):
            above = "/".join(names[:count])
            entry = self._entries.get(self._prefix + above)
            if entry is not None and entry.mode == _LINK:
                raise PathRefused("The path goes through a symlink.")
            is_submodule = entry is not None and entry.mode == _SUBMODULE
            if is_submodule or os.path.lexists(f"{self._workspace}/{os_path(above)}/.git"):
                raise PathRefused(_IN_ANOTHER.format(above))


_IN_ANOTHER = (
    "{} is another repository, a submodule or a nested one: merge it into the work tree and commit "
    "it there."
)


def _mode(found: Found) -> str:
    if found.kind == "symlink":
        return _LINK
    return "100755" if is_executable(found.mode) else "100644"
