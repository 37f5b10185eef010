"""The unpacked snapshots and layers of a store. Standard library only: see `steward`.

A job starts from a chain: a snapshot, and layers on top of it. Each element has a folder, named by
the element and all those below it:

<name>/tree     a snapshot; or the difference that a layer makes, as a lower folder of an overlay
<name>-flat/tree  instead of that difference, the whole tree with it, where no overlay is mounted:
its unchanged files are links to those below
<name>/bytes    what it takes; the file's time is its last use
<name>/below    the name of the folder below, which is kept as long as this one is
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from fanout.workers.sandbox.inside import archives, disks, layers

AGENT_ID = 10001
"""The user and group of sandboxes' processes; a snapshot's files belong to it."""

EMPTY_SNAPSHOT = "empty"


_FLAT = "-flat"


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

    def unpack(self, names: Sequence[str], archive: archives.Source) -> None:
        """Unpack the last element of a chain, after making room for it.

        Nothing is unpacked when one below it has been evicted: the client asks again what is
        missing.

        Args:
            names: the chain.
            archive: of a snapshot, or of a layer.

        Raises:
            UnusableArchive: see `archives.unpack` and `layers.stack`.
        """
        *below, name = names
        fresh = self._scratch()
        try:
            fresh.mkdir()
            written = fresh / ("written" if name.endswith(_FLAT) else "tree")
            make_agents_folder(written)
            removed: list[str] | None = [] if below else None
            unpacked_bytes = archives.unpack(archive, written, _give_to_agent, removed)
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
            layers.stack(tree, removed, under, _give_to_agent)
            return disks.walked_bytes(tree)
        layers.copy_linked(under[0], tree)
        layers.merge_into(tree, written, removed, _give_to_agent)
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
    _give_to_agent(path)


def _give_to_agent(path: str | Path) -> None:
    os.lchown(path, AGENT_ID, AGENT_ID)
