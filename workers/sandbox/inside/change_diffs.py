"""Finds out what the list says of each change: renames, line counts, binary files.

Standard library only. What git would say, and without git where that is certain: a process takes
longer than all the rest. Git is asked, once, about what may be renamed with edits, what was renamed
to several places, and long changes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fanout.workers.sandbox.inside.change_git import GitFile, PathDiff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fanout.workers.sandbox.inside.change_git import PrivateGit
    from fanout.workers.sandbox.inside.change_sides import Contents, Version


_MAX_EDITS = 120
"""Of lines that both texts have, in one comparison: it takes a millisecond or two; git, which is
as quick with many, takes more than that to start."""
_MAX_STEPS = 50_000
"""Of all comparisons of a bundle: some 10 ms; git needs that to start."""
_MAX_PAIRS = 1_000
"""Of a file that is gone and a new one, that are compared: some milliseconds."""
_MAX_SPANS = 2_000
"""Of a content that is compared: with more, git's hashes of spans may be equal by chance."""
_SPAN_BYTES = 64
"""The longest piece of a line that git compares at once."""
_SURE_SHARE = 0.4
"""Of the larger content: with less in common, git, which wants a half, finds no rename. It counts
line ends a little differently."""


class Steps:
    """What is left of the steps that all comparisons of a bundle may take together."""

    def __init__(self, steps: int) -> None:
        self.left = steps


def changed_lines(before: bytes, after: bytes, steps: Steps) -> tuple[int, int] | None:
    """Return how many lines a change adds and removes.

    Args:
        before: the text before.
        after: the text after.
        steps: each comparison of two lines takes one of them.

    Returns:
        None when it would take too many steps.
    """
    old, new = _lines(before), _lines(after)
    first, last = 0, 0
    shorter = min(len(old), len(new))
    while first < shorter and old[first] == new[first]:
        first += 1
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    old_counts, new_counts = Counter(old), Counter(new)
    old_common = [line for line in old if line in new_counts]
    new_common = [line for line in new if line in old_counts]
    edits = _edits(old_common, new_common, steps)
    if edits is None:
        return None
    kept = (len(old_common) + len(new_common) - edits) // 2
    return len(new) - kept, len(old) - kept


def _lines(content: bytes) -> list[bytes]:
    """Return the lines; a last one without an end equals none with one."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [*lines, last + b"\n"] if last else lines


def _edits(old: list[bytes], new: list[bytes], steps: Steps) -> int | None:
    """Return the fewest removed and added lines (E. W. Myers: An O(ND) difference algorithm).

    `furthest[k]`: how many lines of `old` the best way with so many edits gets through that ends
    where it is k lines ahead of `new`.
    """
    furthest = {1: 0}
    for edits in range(min(len(old) + len(new), _MAX_EDITS) + 1):
        for ahead in range(-edits, edits + 1, 2):
            below, above = furthest.get(ahead - 1, -1), furthest.get(ahead + 1, -1)
            at = above if ahead == -edits or (ahead != edits and below < above) else below + 1
            start = at
            while at < len(old) and at - ahead < len(new) and old[at] == new[at - ahead]:
                at += 1
            furthest[ahead] = at
            steps.left -= 1 + at - start
            if at >= len(old) and at - ahead >= len(new):
                return edits
        if steps.left < 0:
            break
    return None


class Change(NamedTuple):
    """A path with what is there before and after."""

    path: str
    before: Version | None
    after: Version | None


class _File(NamedTuple):
    """A path that only one side has."""

    path: str
    version: Version


def diffs_of(
    changes: Iterable[Change], contents: Contents, git: Callable[[], PrivateGit]
) -> dict[str, PathDiff]:
    """Return what the list says of each path with a file, of a renamed one the path after.

    Args:
        changes: the changes.
        contents: what the files hold.
        git: makes a private repository; called if there is something to ask git.

    Raises:
        GitFailed: git is missing or failed.
    """
    found: dict[str, PathDiff] = {}
    created, removed = [], []
    sides: tuple[list[_File], list[_File]] = ([], [])
    steps = Steps(_MAX_STEPS)
    for path, before, after in changes:
        was, is_now = _file(path, before), _file(path, after)
        if was and is_now:
            diff = _edited(was.version, is_now.version, contents, steps)
            if diff is not None:
                found[path] = diff
            else:
                sides[0].append(was)
                sides[1].append(is_now)
        elif was:
            removed.append(was)
        elif is_now:
            created.append(is_now)
    renames = dict(_exact_renames(removed, created, contents))
    sources = {diff.from_path for diff in renames.values()}
    created = [file for file in created if file.path not in renames]
    removed = [file for file in removed if file.path not in sources]
    if _may_be_renamed(removed, created, contents):
        sides[0].extend(removed)
        sides[1].extend(created)
    else:
        found.update((file.path, _removed(file.version, contents)) for file in removed)
        found.update((file.path, _created(file.version, contents)) for file in created)
    if any(sides):
        before_side, after_side = ([_git_file(*file, contents) for file in side] for side in sides)
        found.update(git().compare(before_side, after_side))
    return found | renames


def _file(path: str, version: Version | None) -> _File | None:
    return None if version is None or version.sha256 is None else _File(path, version)


def _git_file(path: str, version: Version, contents: Contents) -> GitFile:
    return GitFile(path, version.git_mode, contents.of(version))


def _edited(before: Version, after: Version, contents: Contents, steps: Steps) -> PathDiff | None:
    """Return the diff of a path that both sides have; None when git is to make it."""
    if contents.is_binary(before) or contents.is_binary(after):
        return PathDiff(None, 0, 0, binary=True)
    if before.sha256 == after.sha256:
        return PathDiff(None, 0, 0, binary=False)
    old, new = contents.of(before), contents.of(after)
    if isinstance(old, bytes) and isinstance(new, bytes):
        lines = changed_lines(old, new, steps)
        return lines and PathDiff(None, *lines, binary=False)
    return None


def _created(version: Version, contents: Contents) -> PathDiff:
    binary = contents.is_binary(version)
    return PathDiff(None, 0 if binary else contents.lines(version), 0, binary)


def _removed(version: Version, contents: Contents) -> PathDiff:
    binary = contents.is_binary(version)
    return PathDiff(None, 0, 0 if binary else contents.lines(version), binary)


def _exact_renames(
    removed: list[_File], created: list[_File], contents: Contents
) -> Iterator[tuple[str, PathDiff]]:
    """Yield what was renamed without an edit, where there is one path before and one after."""
    sources, targets = _by_content(removed), _by_content(created)
    for key in sources.keys() & targets.keys():
        if len(sources[key]) == len(targets[key]) == 1:
            (source,), (target,) = sources[key], targets[key]
            binary = contents.is_binary(target.version)
            yield target.path, PathDiff(source.path, 0, 0, binary)


def _by_content(files: list[_File]) -> dict[tuple[str, str | None], list[_File]]:
    found: dict[tuple[str, str | None], list[_File]] = {}
    for file in files:
        found.setdefault((file.version.kind, file.version.sha256), []).append(file)
    return found


def _may_be_renamed(removed: list[_File], created: list[_File], contents: Contents) -> bool:
    """Return whether git may find that one of the new files was one of those that are gone."""
    if _by_content(removed).keys() & _by_content(created).keys():
        return True
    sources = {file.version for file in removed if _is_compared(file.version)}
    targets = {file.version for file in created if _is_compared(file.version)}
    if len(sources) * len(targets) > _MAX_PAIRS:
        return True
    spans: dict[Version, Counter[bytes] | None] = {}
    for source in sources:
        for target in targets:
            larger = max(source.size_bytes, target.size_bytes)
            if abs(source.size_bytes - target.size_bytes) > larger / 2:
                continue
            for version in (source, target):
                if version not in spans:
                    spans[version] = _spans(contents.of(version))
            old, new = spans[source], spans[target]
            if old is None or new is None or _shared(old, new) > _SURE_SHARE * larger:
                return True
    return False


def _is_compared(version: Version) -> bool:
    return version.kind == "file" and version.size_bytes > 0


def _spans(content: bytes | Path) -> Counter[bytes] | None:
    """Return how often each piece of a content is in it, as git compares files.

    None for a content of too many pieces.
    """
    if isinstance(content, Path):
        return None
    lines = content.replace(b"\r\n", b"\n").split(b"\n", _MAX_SPANS)
    if any(len(line) > _SPAN_BYTES for line in lines):
        lines = [
            line[start : start + _SPAN_BYTES]
            for line in lines
            for start in range(0, max(len(line), 1), _SPAN_BYTES)
        ]
    return Counter(lines) if len(lines) <= _MAX_SPANS else None


def _shared(old: Counter[bytes], new: Counter[bytes]) -> int:
    """Return how many bytes two contents have in common, their line ends included."""
    common = old.keys() & new.keys()
    return sum(min(old[piece], new[piece]) * (len(piece) + 1) for piece in common)
