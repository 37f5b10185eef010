"""The files of an overlay, read from its upper layer and what is below it.

Standard library only: see `steward`. The kernel says with marks on the folders of the upper layer
which of them hide what is below, and which were renamed. No overlay is mounted: the upper layer may
be in use by the job's.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fanout.workers.sandbox.inside.collection.change_sides import (
    KEPT_FOLDERS,
    MAX_DEPTH,
    Side,
    open_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fanout.workers.sandbox.inside.collection.change_sides import Root

    Marks = Mapping[str, str]
    """What the marked folders of an upper layer lie on, by their path: `OPAQUE`; a name in the
    folder below their parent's; or, with a slash before it, a path below the root."""

OPAQUE = ""
"""Of a folder that lies on nothing."""


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
            mark = _mark_of(below, prefix)
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


def _mark_of(folder: int, prefix: str) -> str | None:
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
