"""Several backends as one, mounted at path prefixes; the longest matching prefix decides.

The files below a backend's `search_root` appear below its prefix, which the backend itself never
sees. Commands run on the default backend, or in a shell of their own; it does not see the other
files.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from .matching import real_path, search_roots
from .protocol import (
    Backend,
    Entry,
    Execution,
    Hit,
    Hits,
    OutputSink,
    Shell,
    Walk,
)

_NOT_A_DIRECTORY = (FileNotFoundError, NotADirectoryError, PermissionError)
"""A backend's errors for a path without a directory, at which there may still be a mount."""

_Found = TypeVar("_Found", Entry, Hit)


@dataclass(frozen=True)
class Mount:
    """A backend and its prefix; the default backend's is empty and leaves paths unchanged."""

    prefix: str
    backend: Backend

    def owns(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self.prefix + "/")

    def inner(self, path: str) -> str:
        if not self.prefix:
            return path
        return self.backend.search_root.rstrip("/") + path[len(self.prefix) :] or "/"

    def outer(self, path: str) -> str:
        if not self.prefix:
            return path
        return self.prefix + path[len(self.backend.search_root.rstrip("/")) :].rstrip("/")

    def shown(self, found: _Found) -> _Found:
        return replace(found, path=self.outer(found.path))


class CompositeBackend:
    """A default backend with other backends below path prefixes.

    It has a shell, as a CompositeShell, if one is given or the default backend has one.

    Args:
        default: The backend of all other paths.
        routes: The other backends by prefix; a slash at its end means nothing.
        shell: Where commands run, if not on the default backend.
        internal: The routes are none of the agent's own files: a search of all files leaves them
            out, unless they are below the default backend's search root.

    Raises:
        ValueError: A prefix is not a normalised absolute path below `/`, or is there twice.
    """

    def __new__(cls, default: Backend, *_: Any, shell: Shell | None = None, **__: Any) -> Self:
        """Choose the class with a shell where there is one."""
        has_shell = shell is not None or isinstance(default, Shell)
        chosen: Any = CompositeShell if cls is CompositeBackend and has_shell else cls
        made: Self = super().__new__(chosen)
        return made

    def __init__(
        self,
        default: Backend,
        routes: Mapping[str, Backend],
        *,
        shell: Shell | None = None,
        internal: bool = False,
    ) -> None:
        self._shell = shell or default
        self._internal = internal
        mounted = {prefix.rstrip("/") or "/": backend for prefix, backend in routes.items()}
        if len(mounted) < len(routes):
            raise ValueError("Two routes have the same prefix.")
        for prefix in mounted:
            if prefix == "/" or posixpath.normpath("/" + prefix.lstrip("/")) != prefix:
                raise ValueError(
                    f"A route must be a normalised absolute path below /, not {prefix}."
                )
        self._default = default
        mounts = [Mount(prefix, backend) for prefix, backend in mounted.items()]
        self._mounts = sorted([*mounts, Mount("", default)], key=lambda mount: -len(mount.prefix))

    @property
    def search_root(self) -> str:
        """The default backend's search root."""
        return self._default.search_root

    @property
    def other_roots(self) -> Sequence[str]:
        """Where there are files of the agent outside of the search root (`paths.search_roots`)."""
        inside = self.search_root.rstrip("/") + "/"
        own = [] if self._internal else [mount.prefix for mount in self._mounts if mount.prefix]
        outside = {prefix for prefix in own if not f"{prefix}/".startswith(inside)}
        nested = {each for each in outside if any(each.startswith(f"{one}/") for one in outside)}
        return [*search_roots(self._default)[1:], *sorted(outside - nested)]

    async def stat(self, path: str) -> Entry:
        if self._is_fixed(path):
            return Entry(path=path, kind="directory")
        mount = self._owner(path)
        return mount.shown(await mount.backend.stat(mount.inner(path)))

    async def real_path(self, path: str) -> str:
        """Return a path with its links resolved."""
        if self._is_fixed(path):
            return path
        mount = self._owner(path)
        return mount.outer(await real_path(mount.backend, mount.inner(path)))

    async def list(self, path: str) -> Sequence[Entry]:
        mount = self._owner(path)
        below = path.rstrip("/") + "/"
        names = {route.prefix[len(below) :].partition("/")[0] for route in self._routes_below(path)}
        routed = {below + name: Entry(path=below + name, kind="directory") for name in names}
        entries: Sequence[Entry] = ()
        try:
            entries = await mount.backend.list(mount.inner(path))
        except _NOT_A_DIRECTORY:
            if not routed:
                raise
        found = {mount.outer(entry.path): mount.shown(entry) for entry in entries} | routed
        return [found[name] for name in sorted(found)]

    async def read_bytes(self, path: str, max_bytes: int, *, offset: int = 0) -> bytes:
        if self._is_fixed(path):
            raise IsADirectoryError(path)
        mount = self._owner(path)
        return await mount.backend.read_bytes(mount.inner(path), max_bytes, offset=offset)

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        if self._is_fixed(path):
            raise FileExistsError(path) if create_only else IsADirectoryError(path)
        mount = self._owner(path)
        await mount.backend.write_bytes(mount.inner(path), data, create_only=create_only)

    async def delete(self, path: str) -> None:
        if self._is_fixed(path):
            raise PermissionError(path)
        mount = self._owner(path)
        await mount.backend.delete(mount.inner(path))

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        async def search(
            mount: Mount, start: str, only: Sequence[str] | None, left: int, seconds: float
        ) -> tuple[Sequence[Entry], bool]:
            del only
            walk = await mount.backend.walk(start, max_entries=left, timeout_seconds=seconds)
            return walk.entries, walk.complete

        entries, complete = await self._found(search, path, None, max_entries, timeout_seconds)
        entries = await asyncio.to_thread(sorted, entries, key=lambda entry: entry.path)
        return Walk(entries=tuple(entries), complete=complete)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        async def search(
            mount: Mount, start: str, only: Sequence[str] | None, left: int, seconds: float
        ) -> tuple[Sequence[Hit], bool]:
            found = await mount.backend.grep(
                text, start, only=only, max_hits=left, timeout_seconds=seconds
            )
            results.append((mount, found))
            return found.hits, found.complete

        results: list[tuple[Mount, Hits]] = []
        hits, complete = await self._found(search, path, only, max_hits, timeout_seconds)
        return Hits(
            hits=tuple(hits),
            complete=complete,
            unsearched=sum(found.unsearched for _, found in results),
            unsearched_paths=tuple(
                mount.outer(name) for mount, found in results for name in found.unsearched_paths
            ),
        )

    async def _found(
        self,
        search: Callable[..., Awaitable[tuple[Sequence[_Found], bool]]],
        path: str,
        only: Sequence[str] | None,
        most: int,
        timeout_seconds: float,
    ) -> tuple[Sequence[_Found], bool]:
        """Return what a search of each mount finds within the limits, and whether it is all."""
        deadline = time.monotonic() + timeout_seconds
        shown: list[_Found] = []
        complete = True
        for mount, start, names in await asyncio.to_thread(self._searched, path, only):
            left, seconds = most - len(shown), deadline - time.monotonic()
            if left <= 0 or seconds <= 0:
                return shown, False
            try:
                found, is_all = await search(mount, mount.inner(start), names, left, seconds)
            except _NOT_A_DIRECTORY:
                if not self._routes_below(start):
                    raise
                continue
            shown += await asyncio.to_thread(self._shown_by, mount, found)
            complete = complete and is_all
        return shown, complete

    def _shown_by(self, mount: Mount, found: Sequence[_Found]) -> Sequence[_Found]:
        """Return what is visible of a mount's entries or hits."""
        outside = found if not mount.prefix else map(mount.shown, found)
        return [each for each in outside if self._owner(each.path) is mount]

    def _owner(self, path: str) -> Mount:
        return next(mount for mount in self._mounts if mount.owns(path))

    def _routes_below(self, path: str) -> Sequence[Mount]:
        return [mount for mount in self._mounts if mount.prefix.startswith(path.rstrip("/") + "/")]

    def _is_fixed(self, path: str) -> bool:
        """Return whether the path is or contains a mount, and so cannot be replaced."""
        return any(mount.prefix == path for mount in self._mounts) or bool(self._routes_below(path))

    def _searched(
        self, path: str, only: Sequence[str] | None
    ) -> Sequence[tuple[Mount, str, Sequence[str] | None]]:
        """Return the mounts at and below a path.

        Each comes with the path at which it starts, and those of the named files that belong to it.
        """
        below = sorted(self._routes_below(path), key=lambda route: route.prefix)
        starts = [(self._owner(path), path), *((route, route.prefix) for route in below)]
        if only is None:
            return [(mount, start, None) for mount, start in starts]
        owned: dict[str, list[str]] = {}
        for name in only:
            mount = self._owner(name)
            owned.setdefault(mount.prefix, []).append(mount.inner(name))
        return [
            (mount, start, owned[mount.prefix]) for mount, start in starts if mount.prefix in owned
        ]


class CompositeShell(CompositeBackend):
    """A composite with a shell. `CompositeBackend` makes it where there is one."""

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        if not isinstance(self._shell, Shell):
            raise TypeError("Neither a shell was given, nor has the default backend one.")
        return await self._shell.execute(command, timeout_seconds, max_output_bytes, on_output)


class ReadOnlyBackend(CompositeBackend):
    """Another backend's files, read-only; without a shell, which could change them.

    It is a composite without routes, which passes everything else on. Every change raises
    PermissionError.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, {})

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        del data, create_only
        raise PermissionError(path)

    async def delete(self, path: str) -> None:
        raise PermissionError(path)
