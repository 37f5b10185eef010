"""Paths, glob patterns and searched text, by the same rules for every backend.

A path is a path text (`orchestrator.path_text`): a backend on real files converts it.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import regex
from wcmatch import glob as wcglob

from ...path_text import normal_path_text, path_bytes, path_glob
from ...portable.text_search import MAX_NAMED_FILES, find_lines, is_binary
from ..failures import ToolMistake
from .protocol import (
    AccessRefused,
    Backend,
    Entry,
    Hit,
    Hits,
)

MAX_PATH_CHARACTERS = 4_096
"""PATH_MAX of Linux, its final NUL included."""

MAX_NAME_BYTES = 255
"""NAME_MAX of every common file system."""

MAX_DEPTH = 200
"""Nested directories: each takes a descriptor or a stack frame during a walk, and no source tree is
so deep."""

_DRIVE = re.compile(r"^[A-Za-z]:")

MAX_PATTERN_CHARACTERS = 500
"""Longer than any pattern that a person writes; patterns are compiled to regular expressions."""

MAX_ALTERNATIVES = 200
"""The number of patterns that braces may expand to: `{1..1000000}` would compile a million."""

MAX_GLOBSTARS = 6
"""Each `**` multiplies the number of ways to match."""

_LEAST_SECONDS = 0.001
"""`regex` does not accept a time limit of zero."""

_FLAGS = wcglob.GLOBSTAR | wcglob.BRACE | wcglob.DOTGLOB


def checked_path(path: str, root: str | None = None) -> str:
    """Return the normalised absolute path, as its one path text.

    Args:
        path: The path as it was given.
        root: The directory that a relative path is below, normalised; None refuses relative paths.

    Raises:
        ToolMistake: The tools do not accept the path; the message says why.
    """
    if not path.strip():
        raise ToolMistake(f"The path is empty. Give a path below {root or '/'}.")
    if "\0" in path or len(path) >= MAX_PATH_CHARACTERS:
        raise ToolMistake(
            f"Not a valid path: a path has at most {MAX_PATH_CHARACTERS - 1} characters, no NUL."
        )
    if path.startswith("~") or ".." in re.split(r"[/\\]", path):
        raise ToolMistake(f"Path traversal not allowed: {path}")
    if _DRIVE.match(path):
        raise ToolMistake(
            f"Windows paths are not supported: {path}. Give a path below {root or '/'}."
        )
    path = normal_path_text(path)
    if root is None and not path.startswith("/"):
        raise ToolMistake(f"The path must be absolute: {path}.")
    normal = posixpath.normpath("/" + posixpath.join(root or "/", path).lstrip("/"))
    if any(len(name) > MAX_NAME_BYTES for name in path_bytes(normal).split(b"/")):
        raise ToolMistake(f"A name in the path is longer than {MAX_NAME_BYTES} bytes.")
    if normal.count("/") > MAX_DEPTH:
        raise ToolMistake(f"Not a valid path: it has more than {MAX_DEPTH} names.")
    return normal


async def real_path(backend: Backend, path: str) -> str:
    """Return a path of a backend with its links resolved, as far as it exists.

    Raises:
        AccessRefused: The backend cannot tell where a link leads.
    """
    own: Any = getattr(backend, "real_path", None)
    if own is not None:
        resolved: str = await own(path)
        return resolved
    names = [name for name in path.split("/") if name]
    for depth in range(len(names)):
        parent = "/" + "/".join(names[:depth])
        here = posixpath.join(parent, names[depth])
        try:
            entries = await backend.list(parent)
        except OSError:
            break
        if any(entry.path == here and entry.kind == "symlink" for entry in entries):
            raise AccessRefused(f"{here} is a link, and rules hold for these files: name the file.")
    return path


def search_roots(backend: Backend) -> Sequence[str]:
    """Return the directories that hold all files of an agent; the first is the search root."""
    return [backend.search_root, *getattr(backend, "other_roots", ())]


def matcher(pattern: str) -> Callable[[str, float], bool]:
    """Return a test of paths that are relative to the searched directory.

    The test takes a path and a deadline on `time.monotonic`, after which it raises TimeoutError.

    Args:
        pattern: As `normal_pattern` returns it. `*` matches within one directory, `**` across
            directories; both match names that start with a dot.

    Raises:
        ToolMistake: The pattern is invalid.
    """
    if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS or "\0" in pattern:
        raise ToolMistake(f"A glob pattern has 1 to {MAX_PATTERN_CHARACTERS} characters.")
    if ".." in pattern.split("/") or pattern.startswith("~"):
        raise ToolMistake(f"Path traversal not allowed: {pattern}")
    if pattern.count("**") > MAX_GLOBSTARS:
        raise ToolMistake(f"A glob pattern may hold at most {MAX_GLOBSTARS} '**'.")
    try:
        # `re` blocks all threads until it has a result, which with some patterns takes hours.
        translated = wcglob.translate(path_glob(pattern), flags=_FLAGS, limit=MAX_ALTERNATIVES)[0]
        accepted = [regex.compile(each) for each in translated]
    except Exception as error:  # noqa: BLE001 - the class of "too many alternatives" is private
        raise ToolMistake(f"Not a usable glob pattern: {pattern} ({error})") from None

    def matches(path: str, deadline: float) -> bool:
        left = max(deadline - time.monotonic(), _LEAST_SECONDS)
        return any(each.match(path, timeout=left) for each in accepted)

    return matches


def normal_pattern(pattern: str) -> str:
    """Return a glob pattern without `.` and empty names; a directory means everything below it.

    `./src//*.py` becomes `src/*.py`, and `src/` becomes `src/**`. An empty pattern stays empty.
    """
    names = [name for name in pattern.split("/") if name not in {"", "."}]
    if pattern and (not names or pattern.endswith(("/", "/."))):
        names.append("**")
    return "/" * pattern.startswith("/") + "/".join(names)


def static_part(pattern: str) -> str:
    """Return the directory of an absolute pattern above its first special character."""
    names: list[str] = []
    for name in pattern.split("/")[1:-1]:
        if any(character in name for character in "*?[]{}!()|\\"):
            break
        names.append(name)
    return posixpath.join("/", *names)


def select(
    entries: Iterable[Entry], pattern: str, base: str, *, deadline: float
) -> tuple[list[Entry], bool]:
    """Return the matching entries, and whether all were checked before the deadline.

    Args:
        entries: The entries to check.
        pattern: Matched against the path below `base`; one that starts with `/` also against the
            whole path.
        base: The searched directory.
        deadline: On `time.monotonic`.

    Raises:
        ToolMistake: The pattern is invalid, or names a `.git` directory, which searches leave out.
    """
    bases = {base, "/"} if pattern.startswith("/") else {base}
    pattern = normal_pattern(pattern).lstrip("/")
    if ".git" in pattern.split("/")[:-1] and ".git" not in base.split("/"):
        raise ToolMistake(
            f"Searches leave .git out, so {pattern} would find nothing. Give the .git directory "
            "as path."
        )
    matches = matcher(pattern)
    found: list[Entry] = []
    for entry in entries:
        if time.monotonic() > deadline:
            return found, False
        try:
            if any(matches(posixpath.relpath(entry.path, each), deadline) for each in bases):
                found.append(entry)
        except TimeoutError:
            return found, False
    return found, True


def filter_pattern(glob: str) -> str:
    """Return the glob pattern of a filter, which without a slash matches names at any depth."""
    return glob if "/" in glob else f"**/{glob}"


def hidden_last(path: str, base: str) -> tuple[bool, str]:
    """Return the sort key that puts what is hidden below `base` after everything else."""
    return "/." in path[len(base.rstrip("/")) :], path


class TextSearch:
    """One search for a literal text: its hits, and what it did not search, within its limits.

    Args:
        text: The text.
        max_hits: How many lines to collect.
        deadline: On `time.monotonic`.
    """

    def __init__(self, text: str, *, max_hits: int, deadline: float) -> None:
        self._text, self._max_hits, self._deadline = text, max_hits, deadline
        self._hits: list[Hit] = []
        self._complete = True
        self._unsearched = 0
        self._unsearched_paths: list[str] = []

    @property
    def overlap(self) -> int:
        """How many bytes the parts of a split line must have in common."""
        return max(0, len(self._text.encode()) - 1)

    @property
    def is_over(self) -> bool:
        """Whether a limit was reached; without it, the time is looked at."""
        if self._complete and time.monotonic() > self._deadline:
            self._complete = False
        return not self._complete

    def file(self, path: str, blocks: Iterable[bytes]) -> None:
        """Search one file.

        Args:
            path: Its path.
            blocks: Its content, whole or in parts that end with a line or have `overlap`.
        """
        last = 0
        for hit in find_hits(self._watched(path, blocks), self._text, path):
            if hit.line_number == last:
                continue  # in another part of a split line
            if len(self._hits) >= self._max_hits:
                self._complete = False
                return
            last = hit.line_number
            self._hits.append(hit)

    def leave_out(self, path: str) -> None:
        """Count a file that is not searched."""
        self._unsearched += 1
        if len(self._unsearched_paths) < MAX_NAMED_FILES:
            self._unsearched_paths.append(path)

    def result(self) -> Hits:
        """Return what was found."""
        return Hits(
            hits=tuple(self._hits),
            complete=self._complete,
            unsearched=self._unsearched,
            unsearched_paths=tuple(self._unsearched_paths),
        )

    def _watched(self, path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for number, block in enumerate(blocks):
            if (not number and is_binary(block)) or self.is_over:
                self.leave_out(path)
                return
            yield block


def find_hits(blocks: Iterable[bytes], text: str, path: str) -> Iterator[Hit]:
    """Yield the lines of a file that contain a text; none of a binary file.

    Args:
        blocks: The content, whole or in parts that end with a line.
        text: The text, taken literally.
        path: The file's path, for the hits.
    """
    for line_number, line in find_lines(blocks, text.encode()):
        yield Hit(path=path, line_number=line_number, line=line)
