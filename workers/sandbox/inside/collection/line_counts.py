"""Counts the lines that a change adds and removes. Standard library only.

What git would count with a process: the fewest lines that turn one text into the other. Where a
line repeats often, git's own shortcut may count a few more.
"""

from __future__ import annotations

from collections import Counter

_MAX_EDITS = 120
"""Of lines that both texts have, in one comparison: it takes a millisecond or two; git, which is
as quick with many, takes more than that to start."""


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
