"""Finds the paths that a job may have changed.

Standard library only: see `steward`. Special, large and unreadable files are found like others.
Where the job's files are an overlay they are read from its upper layer and what is below it: no
overlay is mounted, since the upper layer may be in use by the job's. The kernel says with marks on
the folders of the upper layer which of them hide what is below, and which were renamed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from .change_sides import (
    KEPT_FOLDERS,
    MAX_DEPTH,
    Side,
    entry_status,
    equal_contents,
    open_folder,
    paths_below,
    sorted_names,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .change_sides import Root

    Marks = Mapping[str, str]
    """What the marked folders of an upper layer lie on, by their path: `OPAQUE`; a name in the
    folder below their parent's; or, with a slash before it, a path below the root."""


OPAQUE = ""
"""The mark of a folder that has no folder below it in the lower layers."""


def read_marks(upper: Root, prefix: str) -> dict[str, str]:
    """Read the marks of an upper layer.

    Args:
        upper: the layer.
        prefix: how their names begin. Marks of the kernel's own can be read by a process with the
            right to mount only.
    """
    marks: dict[str, str] = {}
    root = open_folder(upper)
    if root is not None:
        _read_below(root, "", 0, prefix, marks)
    return marks


def _read_below(folder: int, path: str, depth: int, prefix: str, marks: dict[str, str]) -> None:
    """Read the marks of a folder's folders, and close it."""
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        for name in names:
            if name == ".git":  # it is not compared
                continue
            below = open_folder(name, folder)
            if below is None:
                continue
            mark = _read_mark(below, prefix)
            if mark is not None:
                marks[path + name] = mark
            if depth < MAX_DEPTH:
                _read_below(below, f"{path}{name}/", depth + 1, prefix, marks)
            else:
                os.close(below)
    except OSError:
        return
    finally:
        os.close(folder)


def _read_mark(folder: int, prefix: str) -> str | None:
    """Return what a folder is marked to lie on; None when it is not marked."""
    with suppress(OSError):
        if os.getxattr(folder, f"{prefix}opaque") == b"y":
            return OPAQUE
    with suppress(OSError):
        return _checked(os.fsdecode(os.getxattr(folder, f"{prefix}redirect")))
    return None


def _checked(redirect: str) -> str:
    """Return a redirect that names a path below; one that does not lies on nothing."""
    names = redirect[1:].split("/") if redirect.startswith("/") else [redirect]
    is_path = all(name not in ("", ".", "..") and "/" not in name for name in names)
    return redirect if is_path else OPAQUE


class _Folder(NamedTuple):
    """A folder of an overlay."""

    upper: int | None
    """The descriptor of its part in the upper layer; None when it has none."""
    lower: int | None
    """That of the folder on which it lies; None when it lies on none."""


class MergedSide(Side):
    """An overlay's files, as one side of a comparison.

    Args:
        lower: what is below the upper layer.
        upper: the layer.
        marks: of the upper layer's folders.
    """

    def __init__(self, lower: Root, upper: Root, marks: Marks) -> None:
        super().__init__(upper)
        self._lower, self._marks = lower, marks
        self._merged: dict[str, _Folder | None] = {}

    def is_marked(self, path: str) -> bool:
        """Return whether a folder lies on another one than that with its path, or on none."""
        return path in self._marks

    def paths_below(self, path: str) -> Iterator[str]:
        """Yield all files below a folder, and the folders that are empty or too deep."""
        is_too_deep = path.count("/") + 1 >= MAX_DEPTH
        for name in sorted(self._names(path) - {".git"}):
            inner = f"{path}/{name}"
            status = self.status(inner)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode) or is_too_deep or not self._is_readable(inner):
                yield inner
                continue
            empty = True
            for each in self.paths_below(inner):
                empty = False
                yield each
            if empty:
                yield inner

    def is_empty(self, path: str) -> bool:
        """See `Side.is_empty`."""
        names = self._names(path)
        return self._is_readable(path) and not any(self.status(f"{path}/{name}") for name in names)

    def _is_readable(self, path: str) -> bool:
        return self._merged_folder(path) is not None

    def _names(self, path: str) -> set[str]:
        folder = self._merged_folder(path)
        names: set[str] = set()
        for descriptor in folder or ():
            if descriptor is not None:
                with suppress(OSError), os.scandir(descriptor) as entries:
                    names.update(entry.name for entry in entries)
        return names

    def _place(self, path: str) -> tuple[int | None, str]:
        """See `Side._place`: in the upper layer, unless that has nothing of this name."""
        parent, _, name = path.rpartition("/")
        folder = self._merged_folder(parent)
        if folder is None:
            return None, name
        if folder.upper is not None and _exists(folder.upper, name):
            return folder.upper, name
        return folder.lower, name

    def _merged_folder(self, path: str) -> _Folder | None:
        """Return a folder; None when there is none that can be opened."""
        if path in self._merged:
            return self._merged[path]
        if len(self._merged) >= KEPT_FOLDERS:
            self._close_merged()
        if not path:
            folder: _Folder | None = _Folder(open_folder(self._root), open_folder(self._lower))
        else:
            parent, _, name = path.rpartition("/")
            within = self._merged_folder(parent)
            folder = None if within is None else self._opened(within, name, self._marks.get(path))
        self._merged[path] = folder
        return folder

    def _opened(self, parent: _Folder, name: str, mark: str | None) -> _Folder | None:
        upper = None
        if parent.upper is not None and _exists(parent.upper, name):
            upper = open_folder(name, parent.upper)
            if upper is None:  # a file or a whiteout hides what is below
                return None
        lower = self._open_lower(parent, name if mark is None else mark)
        return None if upper is None and lower is None else _Folder(upper, lower)

    def _open_lower(self, parent: _Folder, target: str) -> int | None:
        """Open the folder below: a name in the parent's, or a path below the root."""
        if target == OPAQUE:
            return None
        if not target.startswith("/"):
            return None if parent.lower is None else open_folder(target, parent.lower)
        descriptor = open_folder(self._lower)
        for name in target[1:].split("/"):
            if descriptor is None:
                break
            outer, descriptor = descriptor, open_folder(name, descriptor)
            os.close(outer)
        return descriptor

    def close(self) -> None:
        """Close all descriptors."""
        super().close()
        self._close_merged()

    def _close_merged(self) -> None:
        for folder in self._merged.values():
            for descriptor in folder or ():
                if descriptor is not None:
                    os.close(descriptor)
        self._merged.clear()


def _exists(folder: int, name: str) -> bool:
    """Return whether a directory has an entry of this name, be it a whiteout."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


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
    for name in sorted_names(upper):
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
    for name in sorted({*sorted_names(before), *sorted_names(after)}):
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
    first, second = entry_status(before, name), entry_status(after, name)
    if first is None or second is None or first.st_mode != second.st_mode:
        return True
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(name, dir_fd=before) != os.readlink(name, dir_fd=after)
    if not stat.S_ISREG(first.st_mode):
        return False
    return first.st_size != second.st_size or not equal_contents(before, after, name)
