"""Resolution of paths that cannot leave a directory or break a rule, even by links, `..` or races.

Each name is opened relative to its open parent and never followed by the kernel; a link is read and
its names are resolved in the same way. This is openat2's RESOLVE_BENEATH, which Python cannot call.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from fanout.orchestrator.deep_agent.backends.paths import MAX_DEPTH
from fanout.orchestrator.deep_agent.backends.protocol import AccessRefused, AccessRule

MAX_LINKS = 40
"""Linux's limit on links in one path."""

MAX_RULED_BYTES = 10 * 1024**2
"""The part of a file in which a rule looks for secrets; keys and tokens are in small files."""

Check = Callable[[str], None]
"""Is given each path, relative to the root, before it is looked into; raises to refuse it."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """A name in an open directory; there need not be anything of that name."""

    directory: int
    """A file descriptor, open while the context that gave this place is."""
    name: str
    path: str = ""
    """Of this place below the root, links resolved; empty for the root."""

    def lstat(self) -> os.stat_result:
        """What is there, a link not followed; FileNotFoundError when nothing is."""
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)


@dataclass(frozen=True)
class OpenDirectory:
    """An open directory."""

    descriptor: int
    path: str
    """Below the root, links resolved; empty for the root."""


class Access:
    """A rule as checks of paths below a root; without a rule everything is allowed."""

    def __init__(self, rule: AccessRule | None) -> None:
        self._rule = rule

    def shows(self, *parts: str) -> bool:
        """Whether the agent may see a path, given in parts."""
        return self._rule is None or self._rule.why_hidden(_joined(*parts)) is None

    def check_visible(self, path: str) -> None:
        """Refuse what the agent may not see."""
        reason = self._rule and self._rule.why_hidden(path)
        if reason:
            raise AccessRefused(reason)

    def check_content(self, place: Place, content: bytes) -> bytes:
        """Return a file's content; refuse one that the agent may not see."""
        reason = self._rule and self._rule.why_secret(place.path, content)
        if reason:
            raise AccessRefused(reason)
        return content

    def seen_before(self, file: BinaryIO, offset: int) -> bytes:
        """Return what a rule is to see of a file besides the bytes from an offset: its beginning.

        Else a secret could be read from its second half on.
        """
        return file.read(min(offset, MAX_RULED_BYTES)) if self._rule is not None else b""

    def searchable(self, place: Place, file: BinaryIO) -> BinaryIO:
        """Return what may be searched of an open file.

        Raises:
            AccessRefused: The agent may not see it.
            OSError: It is larger than what a rule can look at.
        """
        if self._rule is None:
            return file
        content = file.read(MAX_RULED_BYTES + 1)
        if len(content) > MAX_RULED_BYTES:
            raise OSError(errno.EACCES, "too large for the rule")
        return BytesIO(self.check_content(place, content))

    def check_change(self, path: str) -> None:
        """Refuse what the agent may not change."""
        self.check_visible(path)
        self.check_writable(path)

    def check_writable(self, path: str) -> None:
        """Refuse a path that no file may be written at."""
        reason = self._rule and self._rule.why_unchangeable(path)
        if reason:
            raise AccessRefused(reason)

    def check_tree(self, place: Place) -> None:
        """Refuse a directory with something in it that the agent may not change."""
        if self._rule is None:
            return
        for folder, directories, names, _ in os.fwalk(place.name, dir_fd=place.directory):
            below = posixpath.relpath(folder, place.name)
            for name in (*directories, *names):
                self.check_change(_joined(place.path, below, name))


class Jail:
    """A directory that no path can leave: such a path raises PermissionError."""

    def __init__(self, root: Path, linked: Mapping[str, Path] | None = None) -> None:
        """Create a jail for an existing directory.

        Args:
            root: the directory.
            linked: directories into which absolute links may lead besides `root`, by the path that
                such a link starts with.
        """
        self._root = root
        self._linked = linked or {}

    @contextmanager
    def place(
        self,
        names: Sequence[str],
        *,
        follow_last: bool,
        make_parents: bool = False,
        check: Check | None = None,
    ) -> Iterator[Place]:
        """Where the last name is, its parents resolved.

        `follow_last` also follows links there. `check` sees the path of each name, resolved so far.
        """
        with ExitStack() as opened:
            resolution = _Resolution(
                self._root, self._linked, opened, make_parents=make_parents, check=check
            )
            yield resolution.resolve(names, follow_last=follow_last)

    @contextmanager
    def directory(
        self, names: Sequence[str], *, check: Check | None = None
    ) -> Iterator[OpenDirectory]:
        """Open a directory; NotADirectoryError if it is anything else."""
        with self.place(names, follow_last=True, check=check) as place:
            descriptor = os.open(place.name, _DIRECTORY, dir_fd=place.directory)
            try:
                yield OpenDirectory(descriptor=descriptor, path=place.path)
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
        check: Check | None,
    ) -> None:
        self._root, self._linked = root.resolve(strict=True), linked
        self._opened = opened
        self._make_parents = make_parents
        self._check = check
        self._names: list[str] = []
        """Of the directories in `_stack`, except the first."""
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
            place = Place(self._stack[-1], name, "/".join([*self._names, name]))
            if self._check is not None:
                self._check(place.path)
            if (ahead or follow_last) and self._is_link(place):
                ahead += reversed(self._target(place))
            elif not ahead:
                return place
            else:
                self._enter(place)
        return Place(self._stack[-1], ".", "/".join(self._names))

    def _go_up(self) -> None:
        if len(self._stack) == 1:
            raise PermissionError(errno.EACCES, "leads out of the directory")
        self._stack.pop()
        self._names.pop()

    def _enter(self, place: Place) -> None:
        if self._make_parents:
            with suppress(FileExistsError):
                os.mkdir(place.name, dir_fd=place.directory)
        self._stack.append(self._keep(os.open(place.name, _DIRECTORY, dir_fd=place.directory)))
        self._names.append(place.name)

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
                self._names.clear()
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
