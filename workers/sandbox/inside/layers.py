"""Layers: what was changed in a tree, put on top of it. Standard library only: see `steward`.

A layer is unpacked into a folder of its own: what it writes, and the list of what it removes. Then
it is either stacked, as one more lower folder of an overlay (`stack`), or merged into a copy of the
tree (`merge_into`). A removed folder that is not empty stays; one that loses its last entry goes.
No symlink is followed.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fanout.workers.sandbox.inside.archives import UnusableArchive

Own = Callable[[Path], None]
"""Sets the owner of a path that was made; does not follow links."""


class Stacked:
    """Trees on top of one another, as an overlay shows them. Nothing changes them meanwhile."""

    def __init__(self, trees: Sequence[Path]) -> None:
        """Make it without I/O.

        Args:
            trees: the folders, the uppermost first.
        """
        self._trees = trees

    def status(self, path: str) -> os.stat_result | None:
        """Return the `lstat` of a relative path; None when nothing is there."""
        for tree in self._trees:
            status, is_decided = _look(tree, path)
            if is_decided:
                return status
        return None

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names in a folder; nothing when it is none."""
        seen = set()
        for tree in self._trees:
            status, is_decided = _look(tree, folder)
            if _is_folder(status):
                for path in (tree / folder).iterdir():
                    if path.name not in seen:
                        seen.add(path.name)
                        if not _is_whiteout(path.lstat()):
                            yield path.name
            elif is_decided:
                return

    def is_empty(self, folder: str) -> bool:
        """Return whether there are no names in a folder."""
        return next(self.names(folder), None) is None


def _look(tree: Path, path: str) -> tuple[os.stat_result | None, bool]:
    """Return what one tree has at a path, and whether it hides what is below it."""
    place = os.fspath(tree)
    status = os.lstat(place)
    for name in path.split("/") if path else ():
        if not stat.S_ISDIR(status.st_mode):
            return None, True
        place = f"{place}/{name}"
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            return None, False
        if _is_whiteout(status):
            return None, True
    return status, True


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def can_stack(folder: Path) -> bool:
    """Return whether whiteouts can be made in a folder (by any process since Linux 5.8)."""
    probe = folder / f"whiteout-{uuid.uuid4().hex}"  # others probe at the same time
    try:
        _make_whiteout(probe)
        probe.unlink()
    except OSError:
        return False
    return True


def _make_whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def stack(layer: Path, removed: Sequence[str], below: Sequence[Path], own: Own) -> None:
    """Make an unpacked layer the uppermost lower folder of an overlay.

    Args:
        layer: what it writes.
        removed: the paths that it removes.
        below: the trees below it, the uppermost first.
        own: gives the folders that are made to their owner.

    Raises:
        UnusableArchive: it removes what it writes, or a path that cannot exist.
    """
    stacking = _Stacking(layer, below, own)
    stacking.adapt_folders()
    stacking.hide_all(removed)


class _Stacking:
    """The state of putting one layer on top of others."""

    def __init__(self, layer: Path, below: Sequence[Path], own: Own) -> None:
        self._layer, self._own = layer, own
        self._written = Stacked([layer])
        self._under = Stacked(below)
        self._whole = Stacked([layer, *below])
        self._kept: set[str] = set()
        """Folders that stay although they are empty."""

    def adapt_folders(self) -> None:
        """Make the folders that only lead to a member like those that they lie on."""
        root = os.fspath(self._layer)
        for place, folders, files in os.walk(root):
            folder = place[len(root) + 1 :]
            if not folders and not files:  # only a member of its own makes such a folder
                self._kept.add(folder)
            else:
                _take_attributes(self._layer / folder, self._under.status(folder))

    def hide_all(self, removed: Sequence[str]) -> None:
        """Hide what is removed, and the folders that are empty then."""
        above: set[str] = set()
        for path in _deepest_first(removed):
            status = self._whole.status(path)
            if status is None or (_is_folder(status) and not self._whole.is_empty(path)):
                continue
            written = self._written.status(path)
            if path in self._kept or (written is not None and not _is_folder(written)):
                raise UnusableArchive("it has two members at one path")
            self._hide(path)
            above.update(_folders_above(path))
        for folder in _deepest_first(above - self._kept):
            if self._whole.status(folder) is not None and self._whole.is_empty(folder):
                self._hide(folder)

    def _hide(self, path: str) -> None:
        """Hide a file, or an empty folder."""
        self._make_folders(_folder_of(path))
        if (self._layer / path).is_dir():  # it has nothing but whiteouts
            shutil.rmtree(self._layer / path)
        if self._under.status(path) is not None:
            _make_whiteout(self._layer / path)

    def _make_folders(self, path: str) -> None:
        """Create a folder, and those above it, like those that they lie on."""
        for each in (*reversed(list(_folders_above(path))), path):
            folder = self._layer / each
            if not folder.is_dir():
                folder.mkdir(mode=0o755)
                self._own(folder)
                _take_attributes(folder, self._under.status(each))


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _folders_above(path: str) -> Iterator[str]:
    while path := _folder_of(path):
        yield path


def _deepest_first(paths: Iterable[str]) -> list[str]:
    if any("\0" in path for path in paths):
        raise UnusableArchive("it removes a path that cannot exist")
    return sorted(paths, reverse=True)


def _take_attributes(folder: Path, status: os.stat_result | None) -> None:
    if status is not None and _is_folder(status):
        folder.chmod(stat.S_IMODE(status.st_mode))
        os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_linked(source: Path, target: Path) -> None:
    """Copy a tree; files share their content and may not be written to, if the disk has links.

    Raises:
        CalledProcessError: it could not be copied.
    """
    for how in (["-al"], ["-a", "--reflink=auto"]):
        command = ["cp", *how, "--", os.fspath(source), os.fspath(target)]
        done = subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - ours
        if not done.returncode:
            return
        _delete(target)
    done.check_returncode()


def merge_into(tree: Path, layer: Path, removed: Sequence[str], own: Own) -> None:
    """Merge an unpacked layer into a tree, whose files are replaced and never written to.

    Args:
        tree: the tree.
        layer: what it writes; its files are moved.
        removed: the paths that it removes.
        own: gives the folders that are made to their owner.

    Raises:
        UnusableArchive: it removes a path that cannot exist.
    """
    whole, written = Stacked([tree]), Stacked([layer])
    for path in _deepest_first(removed):
        status = whole.status(path)
        if status is None or _is_folder(written.status(path)):
            continue
        if not _is_folder(status):
            (tree / path).unlink()
        elif not _remove_empty(tree / path):
            continue
        for folder in _folders_above(path):
            if _is_folder(written.status(folder)) or not _remove_empty(tree / folder):
                break
    for place, folders, files in os.walk(layer):
        for made in (Path(place, name) for name in (*folders, *files)):
            target = tree / made.relative_to(layer)
            if made.is_symlink() or not made.is_dir():
                _make_way(target)
                made.rename(target)
            else:
                _merge_folder(made, target, own)


def _merge_folder(made: Path, target: Path, own: Own) -> None:
    with suppress(FileNotFoundError):
        if not _is_folder(target.lstat()):
            target.unlink()
    is_new = not target.exists()
    if is_new:
        target.mkdir()
        own(target)
    if is_new or Stacked([made]).is_empty(""):
        _take_attributes(target, made.lstat())


def _make_way(target: Path) -> None:
    with suppress(FileNotFoundError):
        if _is_folder(target.lstat()):
            _delete(target)
        else:
            target.unlink()


def _delete(tree: Path) -> None:
    """Delete a tree of any depth, if there is one."""
    command = ["rm", "-rf", "--", os.fspath(tree)]
    subprocess.run(command, check=True)  # noqa: S603 - our own paths


def _is_folder(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def _remove_empty(folder: Path) -> bool:
    """Remove a folder if it is empty; return whether it was."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
