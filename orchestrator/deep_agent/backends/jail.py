"""Resolution of paths that cannot leave a directory, even by links, `..` or races.

Each name is opened relative to its open parent and never followed by the kernel; a link is read and
its names are resolved in the same way. This is openat2's RESOLVE_BENEATH, which Python cannot call.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fanout.orchestrator.deep_agent.backends.paths import MAX_DEPTH

MAX_LINKS = 40
"""Linux's limit on links in one path."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """A name in an open directory; there need not be anything of that name."""

    directory: int
    """A file descriptor, open while the context that gave this place is."""
    name: str

    def lstat(self) -> os.stat_result:
        """What is there, a link not followed; FileNotFoundError when nothing is."""
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)


class Jail:
    """A directory that no path can leave: such a path raises PermissionError."""

    def __init__(self, root: Path, linked: Mapping[str, Path] | None = None) -> None:
        """Create a jail for an existing directory.

        Args:
            root: the directory.
            linked: directories into which absolute links may lead besides `root`, by the path that
                such a link starts with.
        """
        self._given_root = root
        self._linked = linked or {}

    @cached_property
    def _root(self) -> Path:
        """The directory by a path without links; each name of the given one would take a look."""
        return self._given_root.resolve(strict=True)

    @contextmanager
    def place(
        self,
        names: Sequence[str],
        *,
        follow_last: bool,
        make_parents: bool = False,
    ) -> Iterator[Place]:
        """Where the last name is, its parents resolved.

        `follow_last` also follows links there.
        """
        with ExitStack() as opened:
            resolution = _Resolution(self._root, self._linked, opened, make_parents=make_parents)
            yield resolution.resolve(names, follow_last=follow_last)

    @contextmanager
    def directory(self, names: Sequence[str]) -> Iterator[int]:
        """Open a directory, for its descriptor; NotADirectoryError if it is anything else."""
        with self.place(names, follow_last=True) as place:
            descriptor = os.open(place.name, _DIRECTORY, dir_fd=place.directory)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


class _Resolution:
    """A path being resolved: the open directories from the root to the current one."""

    def __init__(
        self,
        root: Path,
        linked: Mapping[str, Path],
        opened: ExitStack,
        *,
        make_parents: bool,
    ) -> None:
        self._root, self._linked = root, linked
        self._opened = opened
        self._make_parents = make_parents
        self._links = 0
        self._stack: list[int] = []
        self._stack.append(self._keep(os.open(self._root, _DIRECTORY)))

    def resolve(self, names: Sequence[str], *, follow_last: bool) -> Place:
        ahead = list(reversed(names))
        while ahead:
            name = ahead.pop()
            if name == ".":
                continue
            if name == "..":
                self._go_up()
                continue
            place = Place(self._stack[-1], name)
            if (ahead or follow_last) and self._is_link(place):
                ahead += reversed(self._target(place))
            elif not ahead:
                return place
            else:
                self._enter(place)
        return Place(self._stack[-1], ".")

    def _go_up(self) -> None:
        if len(self._stack) == 1:
            raise PermissionError(errno.EACCES, "leads out of the directory")
        self._stack.pop()

    def _enter(self, place: Place) -> None:
        if self._make_parents:
            with suppress(FileExistsError):
                os.mkdir(place.name, dir_fd=place.directory)
        self._stack.append(self._keep(os.open(place.name, _DIRECTORY, dir_fd=place.directory)))

    def _is_link(self, place: Place) -> bool:
        try:
            return stat.S_ISLNK(place.lstat().st_mode)
        except FileNotFoundError:
            return False

    def _target(self, link: Place) -> list[str]:
        """Return the names in a link's target; an absolute one must be below a known directory."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise PermissionError(errno.ELOOP, "too many links")
        target = os.readlink(link.name, dir_fd=link.directory)
        return self._restart(target) if target.startswith("/") else _names(target)

    def _restart(self, target: str) -> list[str]:
        """Enter the directory of an absolute target, and return the names below it."""
        for prefix, directory in ((str(self._root), self._root), *self._linked.items()):
            if target == prefix or target.startswith(prefix.rstrip("/") + "/"):
                self._stack.clear()
                self._stack.append(self._keep(os.open(directory, _DIRECTORY)))
                return _names(target[len(prefix) :])
        raise PermissionError(errno.EACCES, "leads out of the directory")

    def _keep(self, descriptor: int) -> int:
        if len(self._stack) > MAX_DEPTH:
            os.close(descriptor)
            raise OSError(errno.ENAMETOOLONG, "too many directories")
        self._opened.callback(os.close, descriptor)
        return descriptor


def _joined(*parts: str) -> str:
    """Return a path below the root from its parts, of which some are `.` or empty."""
    return posixpath.normpath(posixpath.join(*parts))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
