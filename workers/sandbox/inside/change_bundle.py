"""Writes the changes of a job as a change bundle.

Standard library only: see `steward`.

The bundle has the format that `orchestrator.jobs.changes` describes. The contents of `.git` folders
are left out; special, large and unreadable files and what exceeds the limits below are named in the
bundle, but not carried. The lists of named paths end with how many more there are. Git is asked
about ignore rules only where one can apply: most rules of a repository fit nothing that a job made.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from .archives import ARCHIVE_END, write_member
from .change_diffs import Change, PathDiff, PrivateGit, make_diffs
from .change_sides import (
    MAX_DEPTH,
    ChangedContents,
    ChangedVersion,
    Side,
    Skip,
)

if TYPE_CHECKING:
    from typing import Self

    from .change_sides import Root


_SIMPLE = re.compile(r"(?:[^][\\]|\[[\w.$~-]+\])+")
"""Git and Python agree about such patterns."""
_WILD = re.compile(r"\[[^]]*\]|[*?]")
_MAX_COMPARED = 100_000
"""Pairs of a rule and a name: some 20 ms; git is as quick with more."""
MAX_FILE_BYTES = 64 << 20
"""The largest file that a bundle carries."""
MAX_TOTAL_BYTES = 512 << 20
"""The most that a bundle carries; what comes later, sorted by path, is only named."""
MAX_CHANGES = 10_000
"""The most changed paths that a bundle carries: a rename in all files of a large project. A worker
needs 3 KB of memory for each."""
MAX_LIST_BYTES = 6 << 20
"""The largest list of changes: what `MAX_CHANGES` changes with paths of usual length need. A path
may have 4,096 bytes and more."""
MAX_NAMED = 1_000
"""The most paths that a list of ignored or skipped paths names: more than anybody reads."""
_MAX_NAMED_BYTES = 256 << 10
"""The most bytes of names in such a list: its paths have 256 bytes on average, far more than usual
ones."""
_MAX_PATHS_BYTES = 64 << 20
"""The most bytes of all paths that are compared, some 500,000; those that a scan finds later are
only counted."""
_ENTRY_BYTES = 400
"""The bytes of a change in the list, without its path, which it has twice if it was renamed."""

BY_PRODUCT = re.compile(
    r"(^|/)(__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.hypothesis|node_modules"
    r"|\.venv)(/|$)|\.py[co]$|(^|/)\.fanout-[0-9a-f]+~$"
)
"""Files that tools leave behind, and the resident when it is killed during a write."""

_MAX_RULES_BYTES = 1 << 20
"""The bytes that are read of one file with ignore rules: no person writes a longer one."""
_MAX_ALL_RULES_BYTES = 16 << 20
"""The most bytes of all these files together, which are held in memory."""
_TOO_MANY = f"a bundle carries {MAX_CHANGES} changes at most"


def may_ignore(rules: Iterable[bytes], paths: Iterable[str]) -> bool:
    """Return whether rules may exclude a path; False is certain.

    Args:
        rules: the contents of ignore files.
        paths: relative paths; a directory's may end with `/`.
    """
    names = {name for path in paths for name in path.split("/") if name}
    lines = {os.fsdecode(line.rstrip(b" \r")) for content in rules for line in content.split(b"\n")}
    patterns = {line.rstrip("/").split("/")[-1] for line in lines if line and line[0] not in "#!"}
    if len(patterns) * len(names) > _MAX_COMPARED:
        return True
    return any(_may_fit(pattern, names) for pattern in patterns)


def _may_fit(pattern: str, names: Collection[str]) -> bool:
    if not _SIMPLE.fullmatch(pattern):
        return True
    pieces = _WILD.split(pattern)
    if len(pieces) == 1:
        return pattern in names
    likely = [name for name in names if all(piece in name for piece in pieces)]
    return any(fnmatchcase(name, pattern) for name in likely)


class _Named:
    """A list of paths, each with a reason if it needs one, that is bounded."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.reasons: list[str] = []
        self.more = 0
        self._left_bytes = _MAX_NAMED_BYTES

    def add(self, path: str, reason: str = "") -> None:
        """Name a path, or count it when the list is full."""
        text = _text(path)
        self._left_bytes -= len(json.dumps(text))
        if len(self.paths) >= MAX_NAMED or self._left_bytes < 0:
            self.more += 1
            return
        self.paths.append(text)
        self.reasons.append(reason)

    def named(self) -> list[str]:
        """Return the paths, and how many more there are."""
        return sorted(self.paths) + ([f"(and {self.more} more)"] if self.more else [])

    def with_reasons(self) -> list[dict[str, str]]:
        """Return the paths with their reasons, and how many more there are."""
        pairs = sorted(zip(self.paths, self.reasons))  # noqa: B905 - Python 3.8 has no `strict`
        entries = [{"path": path, "reason": reason} for path, reason in pairs]
        if self.more:
            most = f"the list has {MAX_NAMED} paths"
            entries.append({"path": f"(and {self.more} more)", "reason": most})
        return entries


def write_bundle(
    out: IO[bytes],
    before: Root,
    after: Root | Side,
    candidates: Iterable[str],
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    max_total_bytes: int = MAX_TOTAL_BYTES,
) -> None:
    """Write the change bundle of those candidates that did change.

    Args:
        out: written from its start to its end; needs only `write`.
        before: the snapshot.
        after: the result: a whole folder, or an overlay's files, which are closed here.
        candidates: from `scan_trees` or `scan_overlay`; what is not in `after` counts as deleted.
        max_file_bytes: larger files are only named.
        max_total_bytes: of all contents together.

    Raises:
        GitFailed: git is missing or failed.
    """
    with (
        Scratch() as scratch,
        closing(Side(before)) as old,
        closing(after if isinstance(after, Side) else Side(after)) as new,
    ):
        contents = ChangedContents(scratch.folder, max_file_bytes, max_total_bytes)
        ignored, skipped = _Named(), _Named()
        paths = _paths(candidates, old, new, ignored, skipped)
        excluded = ignored_paths(scratch.git, old, new, paths)
        for path in sorted(excluded):
            ignored.add(path)
        kept_paths = (path for path in paths if path not in excluded)
        changes = _changes(contents, old, new, kept_paths, skipped)
        document = {
            "version": _version(changes),
            "files": _file_entries(changes, make_diffs(changes, contents, scratch.git)),
            "ignored": ignored.named(),
            "skipped": skipped.with_reasons(),
        }
        versions = (version for _, *both in changes for version in both)
        kept = {version.sha256: version for version in versions if version and version.sha256}
        _write_archive(out, document, {name: contents.of(kept[name]) for name in sorted(kept)})


class Scratch:
    """A folder for what does not fit in memory, and for git; made when it is needed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._git: PrivateGit | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def folder(self) -> Path:
        """Return the folder."""
        if self._folder is None:
            made = tempfile.TemporaryDirectory(prefix="fanout-changes-")
            self._folder = Path(self._stack.enter_context(made))
        return self._folder

    def git(self) -> PrivateGit:
        """Return a private repository in it."""
        if self._git is None:
            self._git = PrivateGit(self.folder() / "private")
        return self._git


def _paths(
    candidates: Iterable[str], old: Side, new: Side, ignored: _Named, skipped: _Named
) -> list[str]:
    """Return the sorted paths to compare, without new by-products, and no more than fit."""
    paths, size = set(), 0
    for path in candidates:
        if path in paths:
            continue
        if BY_PRODUCT.search(path) and (query := added(old, new, path)) is not None:
            if query:
                ignored.add(path)
            continue
        size += len(path)
        if size > _MAX_PATHS_BYTES:
            skipped.add(path, _TOO_MANY)
        else:
            paths.add(path)
    return sorted(paths)


def ignored_paths(
    git: Callable[[], PrivateGit], old: Side, new: Side, paths: list[str]
) -> set[str]:
    """Return the new paths that the snapshot's own rules exclude.

    The rules are the snapshot's, since the job may edit its copy.
    """
    queries = {query: path for path in paths if (query := added(old, new, path))}
    folders = {""} | {
        path[: at.start()] for path in queries.values() for at in re.finditer("/", path)
    }
    rules, left = {}, _MAX_ALL_RULES_BYTES
    for folder in sorted(folders):
        rule = _rules(old, f"{folder}/.gitignore".lstrip("/"))
        if rule and len(rule) <= left:
            rules[folder] = rule
            left -= len(rule)
    exclude = _rules(old, ".git/info/exclude")
    if not may_ignore((*rules.values(), exclude), queries):
        return set()
    return {queries[query] for query in git().ignored(list(queries), rules, exclude)}


def added(old: Side, new: Side, path: str) -> str | None:
    """Return a new path as git is asked about it; None when it is not new.

    It ends with `/` for an empty folder, and is empty for one that has files.
    """
    status = new.status(path)
    if status is None or old.status(path) is not None:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return path
    return f"{path}/" if new.is_empty(path) else ""


def _rules(side: Side, path: str) -> bytes:
    """Return an ignore file's content; empty when there is none that git would read."""
    try:
        with os.fdopen(side.open_file(path), "rb", buffering=0) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(_MAX_RULES_BYTES) or b"" if is_file else b""
    except OSError:
        return b""


def _changes(
    contents: ChangedContents, old: Side, new: Side, paths: Iterable[str], skipped: _Named
) -> list[Change]:
    """Return the changes among the paths; name those that cannot be carried, with the reasons."""
    changes: list[Change] = []
    room = _Room()
    for path in paths:
        first, second = old.status(path), new.status(path)
        try:
            _check_depth(path, first, second)
            if all(status and stat.S_ISDIR(status.st_mode) for status in (first, second)):
                continue
            room.check(len(changes))
            change = Change(
                path, contents.version(old, path, first), contents.version(new, path, second)
            )
            if change.before != change.after:
                _check_name(path)
                room.take(change)
                changes.append(change)
        except Skip as reason:
            skipped.add(path, str(reason))
    return changes


class _Room:
    """What the list of changes has room for. A renamed file takes one entry for its two paths."""

    def __init__(self) -> None:
        self._entries, self._left_bytes = 0, MAX_LIST_BYTES
        self._unpaired: Counter[_Half] = Counter()

    def check(self, changes: int) -> None:
        """Refuse what would only be read in vain: no list has more than all files renamed."""
        if changes >= 2 * MAX_CHANGES or self._left_bytes < 0:
            raise Skip(_TOO_MANY)

    def take(self, change: Change) -> None:
        """Make an entry for a change, unless it is the other half of a rename.

        Raises:
            Skip: there is no room.
        """
        path_bytes = len(json.dumps(_with_bytes("path", change.path)))
        half = _half(change)
        if half is not None and self._unpaired[half.other]:
            self._unpaired[half.other] -= 1
            self._left_bytes -= path_bytes
            return
        if self._entries >= MAX_CHANGES:
            raise Skip(_TOO_MANY)
        if half is not None:
            self._unpaired[half] += 1
        self._entries += 1
        self._left_bytes -= _ENTRY_BYTES + 2 * path_bytes


class _Half(NamedTuple):
    """A file that only one side has: a half of what may be a rename."""

    kind: str
    sha256: str
    is_former: bool

    @property
    def other(self) -> _Half:
        """The half with which it is a rename."""
        return self._replace(is_former=not self.is_former)


def _half(change: Change) -> _Half | None:
    version = change.before or change.after
    if version is None or version.sha256 is None or (change.before and change.after):
        return None
    return _Half(version.kind, version.sha256, change.after is None)


def _check_depth(path: str, first: os.stat_result | None, second: os.stat_result | None) -> None:
    """Refuse a folder that is too deep to be scanned: its files are not known."""
    is_folder = any(status and stat.S_ISDIR(status.st_mode) for status in (first, second))
    if is_folder and path.count("/") >= MAX_DEPTH:
        raise Skip(f"deeper than {MAX_DEPTH} folders")


def _check_name(path: str) -> None:
    if any(part.lower() == ".git" for part in path.split("/")):
        raise Skip("git refuses its name")


def _text(path: str) -> str:
    """Return a path's text, as `orchestrator.path_text` defines it."""
    return os.fsencode(path).replace(rb"\x", rb"\x5cx").decode("utf-8", "backslashreplace")


def _with_bytes(name: str, path: str | None) -> dict[str, str | None]:
    """Return a path's text under a name, and its bytes if they are not those of the text."""
    text = None if path is None else _text(path)
    if path is None or text == path:
        return {name: text}
    return {name: text, f"{name}_bytes": base64.b64encode(os.fsencode(path)).decode()}


def _version(changes: list[Change]) -> int:
    """Return the lowest version of a document that has these paths."""
    return 1 if all(_text(change.path) == change.path for change in changes) else 2


def _file_entries(changes: list[Change], diffs: dict[str, PathDiff]) -> list[dict[str, Any]]:
    """Return the entries of `changes.json`; two that git detects as a rename become one."""
    by_path = {change.path: change for change in changes}
    # a renamed file's old place may be a folder now: that folder keeps an entry of its own
    moved = {
        d.from_path for d in diffs.values() if d.from_path and by_path[d.from_path].after is None
    }
    entries = []
    for path, change in by_path.items():
        if path in moved:
            continue
        diff = diffs.get(path, PathDiff(None, 0, 0, binary=False))
        from_path = diff.from_path if diff.from_path in moved else None
        before = by_path[from_path].before if from_path else change.before
        entries.append(
            {
                **_with_bytes("path", path),
                "change": "renamed" if from_path else _kind(before, change.after),
                **_with_bytes("from_path", from_path),
                "lines_added": diff.lines_added,
                "lines_removed": diff.lines_removed,
                "binary": diff.binary,
                "size_bytes": change.after.size_bytes if change.after else 0,
                "before": before._asdict() if before else None,
                "after": change.after._asdict() if change.after else None,
            }
        )
    return sorted(entries, key=lambda entry: str(entry["path"]))


def _kind(before: ChangedVersion | None, after: ChangedVersion | None) -> str:
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    same_content = (before.kind, before.sha256) == (after.kind, after.sha256)
    return "mode" if same_content else "modified"


def _write_archive(
    out: IO[bytes], document: dict[str, Any], objects: dict[str, bytes | Path]
) -> None:
    """Write the archive; equal changes result in equal bytes."""
    text = json.dumps(document, sort_keys=True).encode()
    write_member(out, "changes.json", text)
    for name, content in objects.items():
        write_member(out, f"objects/{name}", content)
    out.write(ARCHIVE_END)
