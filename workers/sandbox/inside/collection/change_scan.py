"""Finds the changes of a job and writes them as a change bundle.

Standard library only: see `steward`.

The bundle has the format that `orchestrator.jobs.changes` describes. The contents of `.git` folders
are left out; special, large and unreadable files, names that are not text and what exceeds the
limits below are named in the bundle, but not carried. The lists of named paths end with how many
more there are.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fanout.workers.sandbox.inside.archives import add_member
from fanout.workers.sandbox.inside.collection.change_patch import GitFile, PathDiff, PrivateGit
from fanout.workers.sandbox.inside.collection.change_sides import (
    MAX_DEPTH,
    Side,
    equal_contents,
    names_in,
    open_folder,
    paths_below,
    status_in,
)

if TYPE_CHECKING:
    from fanout.workers.sandbox.inside.collection.change_sides import Root

MAX_FILE_BYTES = 64 << 20
"""The largest file that a bundle carries."""
MAX_TOTAL_BYTES = 512 << 20
"""The most that a bundle carries; what comes later, sorted by path, is only named."""
MAX_CHANGES = 10_000
"""The most changed paths that a bundle carries: a rename in all files of a large project. A worker
needs 3 KB of memory for each."""
MAX_LIST_BYTES = 6 << 20
"""Of the list of changes: what `MAX_CHANGES` changes with paths of usual length need. A path may
have 4,096 bytes and more."""
MAX_NAMED = 1_000
"""The most paths that a list of ignored or skipped paths names: more than anybody reads."""
_MAX_NAMED_BYTES = 256 << 10
"""Of such a list: its paths have 256 bytes on average, far more than usual ones."""
_MAX_PATHS_BYTES = 64 << 20
"""Of all paths that are compared, some 500,000; those that a scan finds later are only counted."""
_ENTRY_BYTES = 400
"""Of a change in the list, without its path, which it has twice if it was renamed."""

_BY_PRODUCT = re.compile(
    r"(^|/)(__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.hypothesis|node_modules"
    r"|\.venv)(/|$)|\.py[co]$|(^|/)\.fanout-[0-9a-f]+~$"
)
"""Files that tools leave behind, and the resident when it is killed during a write."""

_MAX_RULES_BYTES = 1 << 20
"""Of one file with ignore rules: a longer one was not written by a person; the rest is not read."""
_MAX_ALL_RULES_BYTES = 16 << 20
"""Of all of them together, which are held in memory."""
_READ_BYTES = 1 << 20
"""Read at once: large enough to be quick, small beside a process."""
_TOO_MANY = f"a bundle carries {MAX_CHANGES} changes at most"
_OPAQUE_MARKS = ("user.overlay.opaque", "trusted.overlay.opaque")


def scan_upper(lower: Root, upper: Root) -> Iterator[str]:
    """Yield the paths that an overlay's upper layer may have changed.

    These are at least the changed paths, and possibly more. Folders that were deleted or replaced
    are expanded to their files.
    """
    with ExitStack() as stack:
        below, above = _opened(stack, lower), _opened(stack, upper)
        if above is not None:
            yield from _scan_layer(below, above, "", 0)


def _scan_layer(lower: int | None, upper: int, prefix: str, depth: int) -> Iterator[str]:
    """Yield the candidates in one folder of the upper layer."""
    if lower is not None and _is_opaque(upper):
        yield from paths_below(lower, prefix)
        lower = None
    if lower is None:
        yield from paths_below(upper, prefix)
        return
    for name in names_in(upper):
        with ExitStack() as stack:
            above = _opened(stack, name, upper) if depth < MAX_DEPTH else None
            below = _opened(stack, name, lower)
            if above is not None and below is not None:
                yield from _scan_layer(below, above, f"{prefix}{name}/", depth + 1)
                continue
            yield prefix + name
            for folder in (above, below):
                if folder is not None:
                    yield from paths_below(folder, f"{prefix}{name}/")


def _opened(stack: ExitStack, name: str | Root, within: int | None = None) -> int | None:
    """Return the descriptor of `open_folder`, which the stack closes."""
    descriptor = open_folder(name, within)
    if descriptor is not None:
        stack.callback(os.close, descriptor)
    return descriptor


def _is_opaque(folder: int) -> bool:
    """Return whether a folder of the upper layer hides the one below it."""
    for mark in _OPAQUE_MARKS:
        with suppress(OSError):
            if os.getxattr(folder, mark) == b"y":
                return True
    return False


def scan_trees(before: Root, after: Root) -> Iterator[str]:
    """Yield the paths that differ between two folders by type, mode or content.

    Reads all files that have the same size on both sides.
    """
    with ExitStack() as stack:
        first, second = _opened(stack, before), _opened(stack, after)
        if first is not None and second is not None:
            yield from _scan_pair(first, second, "", 0)


def _scan_pair(before: int, after: int, prefix: str, depth: int) -> Iterator[str]:
    for name in sorted({*names_in(before), *names_in(after)}):
        with ExitStack() as stack:
            first = _opened(stack, name, before) if depth < MAX_DEPTH else None
            second = _opened(stack, name, after) if depth < MAX_DEPTH else None
            if first is not None and second is not None:
                yield from _scan_pair(first, second, f"{prefix}{name}/", depth + 1)
            elif first is not None or second is not None:
                yield prefix + name
                for folder in (first, second):
                    if folder is not None:
                        yield from paths_below(folder, f"{prefix}{name}/")
            elif _differ(before, after, name):
                yield prefix + name


def _differ(before: int, after: int, name: str) -> bool:
    first, second = status_in(before, name), status_in(after, name)
    if first is None or second is None or first.st_mode != second.st_mode:
        return True
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(name, dir_fd=before) != os.readlink(name, dir_fd=after)
    if not stat.S_ISREG(first.st_mode):
        return False
    return first.st_size != second.st_size or not equal_contents(before, after, name)


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


class _Skip(Exception):
    """A path is named in the bundle, but not carried; the message has the reason."""


@dataclass(frozen=True)
class _Version:
    """One side of a change; the fields of `orchestrator.jobs.changes.FileVersion`."""

    kind: str
    mode: int
    sha256: str | None
    size_bytes: int

    @property
    def git_mode(self) -> str:
        return "120000" if self.kind == "symlink" else "100755" if self.mode & 0o100 else "100644"


class _Objects:
    """The contents that go into a bundle, each stored once in a scratch folder."""

    def __init__(self, folder: Path, max_file_bytes: int, max_total_bytes: int) -> None:
        self._folder = folder
        self._max_file_bytes, self._left = max_file_bytes, max_total_bytes
        folder.mkdir()

    def path(self, sha256: str) -> Path:
        return self._folder / sha256

    def version(self, side: Side, path: str, status: os.stat_result | None) -> _Version | None:
        """Describe the file at a path and store its content.

        None for a missing path, and for a folder that is not empty.

        Raises:
            _Skip: it cannot be carried.
        """
        if status is None:
            return None
        mode = stat.S_IMODE(status.st_mode)
        try:
            if stat.S_ISDIR(status.st_mode):
                return _Version("directory", mode, None, 0) if side.is_empty(path) else None
            if stat.S_ISLNK(status.st_mode):
                return _Version("symlink", 0o777, *self._keep(io.BytesIO(side.link_target(path))))
            if not stat.S_ISREG(status.st_mode):
                raise _Skip("a special file")
            if status.st_size > self._max_file_bytes:
                raise _Skip(f"larger than {self._max_file_bytes} bytes")
            with os.fdopen(side.open_file(path), "rb", buffering=0) as file:
                return _Version("file", mode, *self._keep(file))
        except OSError as error:
            raise _Skip(f"unreadable: {error.strerror}") from error

    def _keep(self, source: io.BytesIO | io.FileIO) -> tuple[str, int]:
        """Copy a content into the scratch folder; return its hash and size."""
        first = source.read(_READ_BYTES) or b""
        if len(first) < _READ_BYTES:
            return self._keep_small(first)
        digest, size = hashlib.sha256(first), len(first)
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as copy:
            copy.write(first)
            while data := source.read(_READ_BYTES):
                size += len(data)
                if size > self._max_file_bytes:  # it grows while it is read
                    Path(copy.name).unlink()
                    raise _Skip(f"larger than {self._max_file_bytes} bytes")
                digest.update(data)
                copy.write(data)
        kept = self.path(digest.hexdigest())
        try:
            if not kept.exists():
                self._take_room(size)
                Path(copy.name).rename(kept)
        finally:
            Path(copy.name).unlink(missing_ok=True)
        return kept.name, size

    def _keep_small(self, content: bytes) -> tuple[str, int]:
        """Keep a content that is in memory: most files are small."""
        if len(content) > self._max_file_bytes:
            raise _Skip(f"larger than {self._max_file_bytes} bytes")
        kept = self.path(hashlib.sha256(content).hexdigest())
        if not kept.exists():
            self._take_room(len(content))
            kept.write_bytes(content)
        return kept.name, len(content)

    def _take_room(self, size: int) -> None:
        if size > self._left:
            raise _Skip("the changes are larger than a bundle may be")
        self._left -= size


@dataclass
class _Change:
    path: str
    before: _Version | None
    after: _Version | None


def write_bundle(
    out: IO[bytes],
    before: Root,
    after: Root,
    candidates: Iterable[str],
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    max_total_bytes: int = MAX_TOTAL_BYTES,
) -> None:
    """Write the change bundle of those candidates that did change.

    Args:
        out: written from its start to its end; needs only `write`.
        before: the snapshot.
        after: the result: a whole folder, or an overlay's upper layer.
        candidates: from `scan_trees` or `scan_upper`; what is not in `after` counts as deleted.
        max_file_bytes: larger files are only named.
        max_total_bytes: of all contents together.

    Raises:
        GitFailed: git is missing or failed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fanout-changes-") as scratch,
        closing(Side(before)) as old,
        closing(Side(after)) as new,
    ):
        objects = _Objects(Path(scratch, "objects"), max_file_bytes, max_total_bytes)
        git = PrivateGit(Path(scratch))
        ignored, skipped = _Named(), _Named()
        paths = _paths(candidates, old, new, ignored, skipped)
        excluded = _ignored(git, old, new, paths)
        for path in sorted(excluded):
            ignored.add(path)
        kept_paths = (path for path in paths if path not in excluded)
        changes = _changes(objects, old, new, kept_paths, skipped)
        patch = Path(scratch, "patch")
        with patch.open("wb") as file:
            diffs = _compare(git, objects, changes, file)
        document = {
            "version": 1,
            "files": _file_entries(changes, diffs),
            "ignored": ignored.named(),
            "skipped": skipped.with_reasons(),
        }
        versions = [version for change in changes for version in (change.before, change.after)]
        kept = {version.sha256 for version in versions if version and version.sha256}
        _write_archive(out, document, patch, [objects.path(name) for name in sorted(kept)])


def _paths(
    candidates: Iterable[str], old: Side, new: Side, ignored: _Named, skipped: _Named
) -> list[str]:
    """Return the sorted paths to compare, without new by-products, and no more than fit."""
    paths, size = set(), 0
    for path in candidates:
        if path in paths:
            continue
        if _BY_PRODUCT.search(path) and (query := _added(old, new, path)) is not None:
            if query:
                ignored.add(path)
            continue
        size += len(path)
        if size > _MAX_PATHS_BYTES:
            skipped.add(path, _TOO_MANY)
        else:
            paths.add(path)
    return sorted(paths)


def _ignored(git: PrivateGit, old: Side, new: Side, paths: list[str]) -> set[str]:
    """Return the new paths that the snapshot's own rules exclude.

    The rules are the snapshot's, since the job may edit its copy.
    """
    queries = {query: path for path in paths if (query := _added(old, new, path))}
    folders = {""} | {
        path[: at.start()] for path in queries.values() for at in re.finditer("/", path)
    }
    rules, left = {}, _MAX_ALL_RULES_BYTES
    for folder in sorted(folders):
        rule = _rules(old, f"{folder}/.gitignore".lstrip("/"))
        if rule and len(rule) <= left:
            rules[folder] = rule
            left -= len(rule)
    found = git.ignored(list(queries), rules, _rules(old, ".git/info/exclude"))
    return {queries[query] for query in found}


def _added(old: Side, new: Side, path: str) -> str | None:
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
    objects: _Objects, old: Side, new: Side, paths: Iterable[str], skipped: _Named
) -> list[_Change]:
    """Return the changes among the paths; name those that cannot be carried, with the reasons."""
    changes: list[_Change] = []
    left = MAX_LIST_BYTES
    for path in paths:
        first, second = old.status(path), new.status(path)
        try:
            _check_depth(path, first, second)
            if all(status and stat.S_ISDIR(status.st_mode) for status in (first, second)):
                continue
            _check_room(len(changes), left)
            change = _Change(
                path, objects.version(old, path, first), objects.version(new, path, second)
            )
            if change.before != change.after:
                _check_name(path)
                changes.append(change)
                left -= _ENTRY_BYTES + 2 * len(json.dumps(path))
        except _Skip as reason:
            skipped.add(path, str(reason))
    return changes


def _check_room(changes: int, left_bytes: int) -> None:
    if changes >= MAX_CHANGES or left_bytes < 0:
        raise _Skip(_TOO_MANY)


def _check_depth(path: str, first: os.stat_result | None, second: os.stat_result | None) -> None:
    """Refuse a folder that is too deep to be scanned: its files are not known."""
    is_folder = any(status and stat.S_ISDIR(status.st_mode) for status in (first, second))
    if is_folder and path.count("/") >= MAX_DEPTH:
        raise _Skip(f"deeper than {MAX_DEPTH} folders")


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _Skip("its name is not UTF-8") from None
    if any(part.lower() == ".git" for part in path.split("/")):
        raise _Skip("git refuses its name")


def _text(path: str) -> str:
    """Return a path as readable text; undecodable bytes are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def _compare(
    git: PrivateGit, objects: _Objects, changes: list[_Change], patch: IO[bytes]
) -> dict[str, PathDiff]:
    sides: tuple[list[GitFile], list[GitFile]] = ([], [])
    for change in changes:
        for files, version in zip(sides, (change.before, change.after), strict=True):
            if version is not None and version.sha256 is not None:
                files.append(GitFile(change.path, version.git_mode, objects.path(version.sha256)))
    return git.compare(*sides, patch) if any(sides) else {}


def _file_entries(changes: list[_Change], diffs: dict[str, PathDiff]) -> list[dict[str, Any]]:
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
                "path": path,
                "change": "renamed" if from_path else _kind(before, change.after),
                "from_path": from_path,
                "lines_added": diff.lines_added,
                "lines_removed": diff.lines_removed,
                "binary": diff.binary,
                "size_bytes": change.after.size_bytes if change.after else 0,
                "before": vars(before) if before else None,
                "after": vars(change.after) if change.after else None,
            }
        )
    return entries


def _kind(before: _Version | None, after: _Version | None) -> str:
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    same_content = (before.kind, before.sha256) == (after.kind, after.sha256)
    return "mode" if same_content else "modified"


def _write_archive(
    out: IO[bytes], document: dict[str, Any], patch: Path, objects: list[Path]
) -> None:
    """Write the archive; equal changes result in equal bytes."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        text = json.dumps(document, sort_keys=True).encode()
        add_member(archive, "changes.json", text, len(text))
        for name, path in [("patch", patch), *((f"objects/{path.name}", path) for path in objects)]:
            with path.open("rb") as file:
                add_member(archive, name, file, path.stat().st_size)
