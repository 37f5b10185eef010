"""Finds the paths that a job may have changed.

Standard library only: see `steward`. Special, large and unreadable files are found like others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fanout.workers.sandbox.inside.collection.change_sides import (
    MAX_DEPTH,
    equal_contents,
    names_in,
    open_folder,
    paths_below,
    status_in,
)

if TYPE_CHECKING:
    from fanout.workers.sandbox.inside.collection.change_sides import Root
    from fanout.workers.sandbox.inside.collection.merged import MergedSide


def scan_overlay(lower: Root, upper: Root, merged: MergedSide) -> Iterator[str]:
    """Yield the paths that an overlay's upper layer may have changed.

    These are at least the changed paths, and possibly more. Folders that were deleted, replaced or
    renamed are expanded to their files.

    Args:
        lower: what is below the layer.
        upper: the layer.
        merged: both, as the overlay shows them.
    """
    with ExitStack() as stack:
        below, above = _opened(stack, lower), _opened(stack, upper)
        if below is not None and above is not None:
            yield from _scan_layer(below, above, merged, "", 0)


def _scan_layer(
    lower: int, upper: int, merged: MergedSide, prefix: str, depth: int
) -> Iterator[str]:
    """Yield the candidates in one folder of the upper layer."""
    for name in names_in(upper):
        path = prefix + name
        with ExitStack() as stack:
            above = _opened(stack, name, upper) if depth < MAX_DEPTH else None
            below = _opened(stack, name, lower)
            if above is not None and below is not None and not merged.is_marked(path):
                yield from _scan_layer(below, above, merged, f"{path}/", depth + 1)
                continue
            yield path
            if above is not None:
                yield from merged.paths_below(path)
            if below is not None:
                yield from paths_below(below, f"{path}/")


def _opened(stack: ExitStack, name: str | Root, within: int | None = None) -> int | None:
    """Return the descriptor of `open_folder`, which the stack closes."""
    descriptor = open_folder(name, within)
    if descriptor is not None:
        stack.callback(os.close, descriptor)
    return descriptor


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
