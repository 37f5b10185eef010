"""The unpacked snapshots and layers of a store. Standard library only: see `steward`.

A job starts from a chain: a snapshot, and layers on top of it. Each element has a folder, named by
the element and all those below it:

<name>/tree     a snapshot; or the difference that a layer makes, as a lower folder of an overlay
<name>-flat/tree  instead of that difference, the whole tree with it, where no overlay is mounted:
its unchanged files are links to those below
<name>/bytes    what it takes; the file's time is its last use
<name>/below    the name of the folder below, which is kept as long as this one is

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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from . import archives, disks
from .archives import UnusableArchive

Own = Callable[[Path], None]
"""Sets the owner of a path that was made; does not follow links."""
AGENT_ID = 10001
"""The user and group of sandboxes' processes; a snapshot's files belong to it."""

EMPTY_SNAPSHOT = "empty"


_FLAT = "-flat"


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
        self._make_folders(_parent(path))
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


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _folders_above(path: str) -> Iterator[str]:
    while path := _parent(path):
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


def element_names(chain: Sequence[str], *, is_flat: bool) -> list[str]:
    """Return the names of a chain's folders.

    Args:
        chain: the ids of its elements.
        is_flat: whether each layer's folder has the whole tree.
    """
    return [*chain[:1], *(f"{each}{_FLAT if is_flat else ''}" for each in chain[1:])]


class Snapshots:
    """The folders of one store."""

    def __init__(
        self, root: Path, cache_bytes: int, *,
        scratch: Callable[[], Path], discard: Callable[[Path], object],
        locked: Callable[[], AbstractContextManager[None]], in_use: Callable[[], set[str]],
    ) -> None:  # fmt: skip
        """Make it without I/O.

        Args:
            root: the folder that has them.
            cache_bytes: the limit on what no job uses.
            scratch: returns a new path on the same disk.
            discard: lets a folder disappear at once, and deletes it.
            locked: excludes other stewards, and other threads of this one.
            in_use: returns the names of the last elements of the chains that jobs use.
        """
        self.root = root
        self._cache_bytes = cache_bytes
        self._scratch, self._discard = scratch, discard
        self._locked, self._in_use = locked, in_use

    def add_empty(self) -> None:
        """Create the snapshot without files, if it is missing."""
        if not (self.root / EMPTY_SNAPSHOT).exists():
            fresh = self._scratch()
            fresh.mkdir()
            make_agents_folder(fresh / "tree")
            self._install(fresh, EMPTY_SNAPSHOT, 0, "")

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return which elements are not unpacked, and mark the others as used.

        The caller excludes others.
        """
        found = {name for name in names if (self.root / name).exists()}
        for name in found:
            os.utime(self.root / name / "bytes")
        return [name for name in names if name not in found]

    def trees(self, name: str) -> list[Path]:
        """Return the trees of a chain, by its last element: what an overlay needs, uppermost first.

        One, if that element has the whole tree.
        """
        if name.endswith(_FLAT):
            return [self.root / name / "tree"]
        return [self.root / each / "tree" for each in self._with_those_below(name)]

    def _with_those_below(self, name: str) -> Iterator[str]:
        while name:
            yield name
            name = self._below(name)

    def _below(self, name: str) -> str:
        """Return the name of the element below; empty for a snapshot."""
        record = self.root / name / "below"
        return record.read_text() if record.exists() else ""

    def unpack(self, names: Sequence[str], archive: archives.MemberSource) -> None:
        """Unpack the last element of a chain, after making room for it.

        Nothing is unpacked when one below it has been evicted: the client asks again what is
        missing.

        Args:
            names: the chain.
            archive: of a snapshot, or of a layer.

        Raises:
            UnusableArchive: see `archives.unpack` and `stack`.
        """
        *below, name = names
        fresh = self._scratch()
        try:
            fresh.mkdir()
            written = fresh / ("written" if name.endswith(_FLAT) else "tree")
            make_agents_folder(written)
            removed: list[str] | None = [] if below else None
            unpacked_bytes = archives.unpack(archive, written, give_to_agent, removed)
            with self._watched(below) as is_evicted:
                try:
                    size = self._finished(fresh, below, removed or [], unpacked_bytes)
                except (OSError, subprocess.CalledProcessError):
                    if is_evicted():
                        return
                    raise
                with self._locked():
                    if not is_evicted():
                        self._evict(self._cache_bytes - size, {*below})
                        self._install(fresh, name, size, below[-1] if below else "")
        finally:
            if fresh.exists():
                self._discard(fresh)

    def _finished(
        self, fresh: Path, below: Sequence[str], removed: Sequence[str], unpacked_bytes: int
    ) -> int:
        """Put what was unpacked on top of those below it; return its size in bytes."""
        tree, written = fresh / "tree", fresh / "written"
        if not below:
            return unpacked_bytes
        under = self.trees(below[-1])
        if not written.exists():
            stack(tree, removed, under, give_to_agent)
            return disks.walked_bytes(tree)
        copy_linked(under[0], tree)
        merge_into(tree, written, removed, give_to_agent)
        return disks.used_bytes([under[0], tree])[1]  # a linked file counts where it is found first

    @contextmanager
    def _watched(self, names: Sequence[str]) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether one of these was evicted since.

        One that is there again is another folder: none gets the number of an open one.
        """
        with ExitStack() as stack:
            opened: dict[str, int] = {}
            for name in names:
                with suppress(FileNotFoundError):
                    opened[name] = os.open(self.root / name, os.O_RDONLY | os.O_DIRECTORY)
                    stack.callback(os.close, opened[name])

            def is_evicted() -> bool:
                try:
                    statuses = [(self.root / name).stat() for name in names]
                except FileNotFoundError:
                    return True
                return len(opened) < len(names) or not all(
                    os.path.samestat(os.fstat(opened[name]), status)
                    for name, status in zip(names, statuses, strict=True)
                )

            yield is_evicted

    def _evict(self, keep_bytes: int, kept: set[str]) -> None:
        """Delete unused elements, least recently used first, until the rest fits."""
        records = {record.parent.name: record for record in self.root.glob("*/bytes")}
        sizes = {name: int(record.read_text()) for name, record in records.items()}
        used_at = {name: record.stat().st_mtime for name, record in records.items()}
        below = {name: self._below(name) for name in records}
        kept = {EMPTY_SNAPSHOT, *kept, *self._in_use()}
        total = sum(sizes.values())
        while total > keep_bytes:
            needed = kept | {below[name] for name in sizes}
            unused = sizes.keys() - needed
            if not unused:
                return
            oldest = min(unused, key=used_at.__getitem__)
            self._discard(self.root / oldest)
            total -= sizes.pop(oldest)

    def _install(self, fresh: Path, name: str, size: int, below: str) -> None:
        (fresh / "bytes").write_text(str(size))
        (fresh / "below").write_text(below)
        with suppress(OSError):  # another steward was faster
            fresh.rename(self.root / name)


def make_agents_folder(path: Path) -> None:
    """Create a folder that belongs to the jobs' user."""
    path.mkdir(mode=0o755)
    give_to_agent(path)


def give_to_agent(path: str | Path) -> None:
    """Give a path to the jobs' user; a link is not followed."""
    os.lchown(path, AGENT_ID, AGENT_ID)
