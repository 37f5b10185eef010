"""Three-way merges of text: without Git where the changes are apart, otherwise with Git."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

from .process import run_git

_PROBE_BYTES = 8_000
"""The first bytes of a file that Git examines: a NUL makes the file binary."""

_CONFLICT_CODES = range(1, 128)
"""`git merge-file` exits with the number of conflicts, at most 127; a larger code is a failure."""

_ENDED, _OPEN = b"\x1e", b"\x1f"
"""Separator lines after a line with a line end, and after a last line without one."""


def is_text(content: bytes) -> bool:
    """Return whether Git treats this content as text, which it can merge."""
    return b"\0" not in content[:_PROBE_BYTES]


def merge_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return `ours` with the changes from `base` to `theirs`; None if both changed the same lines.

    Changes of neighbouring lines, which Git treats as a conflict, are merged too. Merging the same
    change into the result again changes nothing; None if lines repeat so that this is uncertain.

    Args:
        base: The common origin.
        ours: The content to change.
        theirs: The changed origin.

    Raises:
        GitFailed: Git is needed and is not installed, or failed otherwise than by a conflict.
    """
    merged = _merged(base, ours, theirs)
    if merged is None or merged == theirs or _is_stable(base, merged, theirs):
        return merged
    return None


def union_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return `ours` with the changes from `base` to `theirs`; of the same lines those of both.

    Merging the same change into the result again changes nothing; None where it would.

    Raises:
        GitFailed: Git is not installed, or failed.
    """
    merged = _union(base, ours, theirs)
    is_stable = merged == ours or _union(base, merged, theirs) == merged
    return merged if is_stable or contains_change(base, merged, theirs) else None


def _union(base: bytes, ours: bytes, theirs: bytes) -> bytes:
    merged = _merged(base, ours, theirs)
    if merged is not None:
        return merged
    added, here = (_lines_beyond(base, content) for content in (theirs, ours))
    if added and added <= here:  # Git would repeat lines between those of the other side
        return ours
    return _run_merge_file(base, ours, theirs, "--union")[1]


def _lines_beyond(base: bytes, content: bytes) -> Counter[bytes]:
    return Counter(content.split(b"\n")) - Counter(base.split(b"\n"))


def marked_text(
    base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str], marker_size: int
) -> bytes:
    """Return `ours` with the changes from `base` to `theirs`, conflicts between Git's markers.

    Args:
        base: The common origin.
        ours: The content to change.
        theirs: The changed origin.
        labels: The names of the two sides at the markers.
        marker_size: The length of a marker.

    Raises:
        GitFailed: Git is not installed, or failed otherwise than by a conflict.
    """
    named = ("-L", labels[0], "-L", "base", "-L", labels[1], f"--marker-size={marker_size}")
    _, merged = _run_merge_file(base, ours, theirs, *named)
    return merged


def contains_change(base: bytes, ours: bytes, theirs: bytes) -> bool:
    """Return whether `ours` already contains the change from `base` to `theirs`.

    It does if the change can be reverted in `ours`, and applying it again results in `ours`. Then
    `ours` has every line that the change brings.

    Raises:
        GitFailed: Git is not installed, or failed otherwise than by a conflict.
    """
    if not set(theirs.split(b"\n")).difference(base.split(b"\n")) <= set(ours.split(b"\n")):
        return False
    without = _merged(theirs, ours, base)
    return without is not None and _merged(base, without, theirs) == ours


def _is_stable(base: bytes, merged: bytes, theirs: bytes) -> bool:
    """Return whether merging the change again does not change the result."""
    return _merged(base, merged, theirs) == merged or contains_change(base, merged, theirs)


def _merged(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    for merge_once in (_merge_between_anchors, _merge_file, _merge_separated):
        merged = merge_once(base, ours, theirs)
        if merged is not None:
            return merged
    return None


def _merge_between_anchors(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge separate changes without a process of Git, which takes several times as long.

    Anchors are the lines that occur once in each version. None if they have another order in one,
    if both sides changed what is between two of them, or if lines moved; such merges are left to
    Git.
    """
    before, here, there = versions = [content.split(b"\n") for content in (base, ours, theirs)]
    counts = [Counter(lines) for lines in versions]
    anchors = {line for line in before if all(count[line] == 1 for count in counts)}
    places = [[at for at, line in enumerate(lines) if line in anchors] for lines in versions]
    orders = [[lines[at] for at in ats] for lines, ats in zip(versions, places, strict=True)]
    if not orders[0] == orders[1] == orders[2]:
        return None
    edges = [[-1, *ats, len(lines)] for lines, ats in zip(versions, places, strict=True)]
    merged, grown = here.copy(), 0
    removed, added = set[bytes](), set[bytes]()
    for (b0, b1), (h0, h1), (t0, t1) in zip(*map(pairwise, edges), strict=True):
        old, ours_now, theirs_now = before[b0 + 1 : b1], here[h0 + 1 : h1], there[t0 + 1 : t1]
        if old == ours_now == theirs_now:
            continue
        if old not in (ours_now, theirs_now) and ours_now != theirs_now:
            return None
        new = ours_now if theirs_now == old else theirs_now
        removed |= (Counter(old) - Counter(new)).keys()
        added |= (Counter(new) - Counter(old)).keys()
        merged[h0 + 1 + grown : h1 + grown] = new
        grown += len(new) - len(ours_now)
    return b"\n".join(merged) if removed.isdisjoint(added) else None


def _merge_separated(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge with a separator after each line, so that neighbouring changes do not conflict."""
    versions = (base, ours, theirs)
    if any(mark in version for version in versions for mark in (_ENDED, _OPEN)):
        return None
    merged = _merge_file(*(_separated(version) for version in versions))
    return None if merged is None else _joined(merged)


def _separated(content: bytes) -> bytes:
    *lines, rest = content.split(b"\n")
    separated = [line + b"\n" + _ENDED + b"\n" for line in lines]
    return b"".join(separated) + (rest + b"\n" + _OPEN + b"\n" if rest else b"")


def _joined(separated: bytes) -> bytes | None:
    """Return the lines without separators; None if the merge split a line from its separator."""
    lines = separated.split(b"\n")[:-1]
    texts, ends = lines[0::2], lines[1::2]
    if len(texts) != len(ends) or any(text in {_ENDED, _OPEN} for text in texts):
        return None
    if any(end != _ENDED for end in ends[:-1]) or (ends and ends[-1] not in {_ENDED, _OPEN}):
        return None
    content = b"\n".join(texts)
    return content + b"\n" if ends and ends[-1] == _ENDED else content


def _merge_file(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    code, merged = _run_merge_file(base, ours, theirs)
    return None if code in _CONFLICT_CODES else merged


def _run_merge_file(base: bytes, ours: bytes, theirs: bytes, *options: str) -> tuple[int, bytes]:
    with tempfile.TemporaryDirectory(prefix="fanout-merge-") as folder:
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            Path(folder, name).write_bytes(content)
        return run_git(
            ["merge-file", "-p", "-q", *options, "ours", "base", "theirs"],
            folder=Path(folder),
            accepted=(0, *_CONFLICT_CODES),
            max_output_bytes=2 * (len(base) + len(ours) + len(theirs)) + _PROBE_BYTES,
        )
