"""Another backend's files with changes on top, which stay in memory until they are applied.

A sub-agent works on its parent's files this way, and a failed one leaves no changes. The content at
the first change of a file is kept for the three-way merge in
`orchestrator.deep_agent.delegation.apply_changes`.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import asyncio
import base64
import hashlib
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..failures import ToolMistake
from .matching import TextSearch, real_path, search_roots
from .protocol import Backend, Entry, Hits, Walk

MAX_STAGED_BYTES = 64 * 1024**2
"""The size of one overlay, with both versions of each changed file: one process has many in
memory."""

MAX_DELETED_FILES = 10_000
"""Files in a directory that is deleted: each is compared again when the changes are applied."""

DELETE_SECONDS = 15.0
"""How long the search for a deleted directory's files may take."""


@dataclass(frozen=True)
class StagedFile:
    """A changed file; its content is None where it does not exist."""

    path: str
    before: bytes | None
    after: bytes | None
    changed_at: float = 0.0
    """Seconds since the epoch."""
    mode: int | None = None
    """The permission bits that it gets; None for those that it has, or that new files get."""

    @property
    def change(self) -> str:
        """`added`, `modified` or `deleted`."""
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "modified"

    @property
    def size_bytes(self) -> int:
        """The size of both versions."""
        return len(self.before or b"") + len(self.after or b"")


class OverlayBackend:
    """The current files of `base` with this overlay's changes.

    Args:
        base: The files below; never changed.
    """

    def __init__(self, base: Backend) -> None:
        self._base = base
        self._staged: dict[str, StagedFile] = {}
        self._removed: set[str] = set()
        """Deleted directories, which hide the files below them in `base`."""
        self._seen: dict[str, str] = {}
        """The version of each file that was completely read from `base`."""
        self._changing = asyncio.Lock()

    @property
    def search_root(self) -> str:
        """The search root of `base`."""
        return self._base.search_root

    @property
    def other_roots(self) -> Sequence[str]:
        """See `paths.search_roots`."""
        return search_roots(self._base)[1:]

    @property
    def changes(self) -> list[StagedFile]:
        """The changed files, sorted by path."""
        return [self._staged[path] for path in sorted(self._staged)]

    async def changed_files(self) -> Mapping[str, str]:
        """Return the changed files, the last changed last, with their changes."""
        staged = sorted(self._staged.values(), key=lambda file: file.changed_at)
        return {file.path: file.change for file in staged}

    @property
    def removed_directories(self) -> list[str]:
        """The deleted directories, the inner ones first."""
        return sorted(self._removed, key=len, reverse=True)

    def dump(self) -> dict[str, Any]:
        """Return the changes as JSON, for `load` in another process."""
        files = {
            path: [_packed(file.before), _packed(file.after), file.changed_at, file.mode]
            for path, file in self._staged.items()
        }
        return {"files": files, "removed": sorted(self._removed)}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Add the changes that `dump` returned."""
        for path, (before, after, changed_at, mode) in dumped["files"].items():
            self._staged[path] = StagedFile(
                path, _unpacked(before), _unpacked(after), changed_at, mode
            )
        self._removed.update(dumped["removed"])

    def put(self, file: StagedFile) -> None:
        """Stage a change that was made elsewhere; of a staged file the first `before` is kept.

        Raises:
            ToolMistake: The changes would exceed MAX_STAGED_BYTES.
        """
        known = self._staged.get(file.path)
        self._stage(file if known is None else replace(file, before=known.before))

    async def stat(self, path: str) -> Entry:
        if (own := self._own_file(path)) is not None:
            return _entry(own)
        if next(self._staged_below(path), None) is not None:
            return Entry(path=path, kind="directory")
        if self._is_below_own_file(path):
            raise NotADirectoryError(path)
        if not self._shows_base(path):
            raise FileNotFoundError(path)
        return await self._base.stat(path)

    async def real_path(self, path: str) -> str:
        """Return a path with its links resolved."""
        return await real_path(self._base, path) if self._shows_base(path) else path

    async def list(self, path: str) -> Sequence[Entry]:
        found: dict[str, Entry] = {}
        if (await self.stat(path)).kind != "directory":
            raise NotADirectoryError(path)
        if self._shows_base(path):
            try:
                entries = await self._base.list(path)
            except FileNotFoundError:
                entries = ()
            found = {entry.path: entry for entry in entries if self._shows_base(entry.path)}
        below = path.rstrip("/") + "/"
        for file in self._staged_below(path):
            name, _, rest = file.path[len(below) :].partition("/")
            child = below + name
            found[child] = Entry(path=child, kind="directory") if rest else _entry(file)
        return [found[name] for name in sorted(found)]

    async def read_bytes(self, path: str, max_bytes: int, *, offset: int = 0) -> bytes:
        if (own := self._own_file(path)) is not None:
            return (own.after or b"")[offset : offset + max_bytes]
        data: bytes | None = None
        if self._shows_base(path):
            with suppress(FileNotFoundError):
                data = await self._base.read_bytes(path, max_bytes, offset=offset)
        if data is None:
            is_directory = (await self.stat(path)).kind == "directory"
            raise IsADirectoryError(path) if is_directory else FileNotFoundError(path)
        if not offset and len(data) < max_bytes:
            self._seen[path] = await _version(data)
        return data

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        async with self._changing:
            await self._refuse_write(path, create_only=create_only)
            await self._change(path, data)

    async def delete(self, path: str) -> None:
        async with self._changing:
            if (await self.stat(path)).kind == "directory":
                await self._delete_directory(path)
            else:
                await self._change(path, None)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        own = [_entry(file) for file in self._staged_below(path) if not _is_git(file.path, path)]
        walk = Walk(entries=())
        if self._shows_base(path):
            try:
                walk = await self._base.walk(
                    path, max_entries=max_entries, timeout_seconds=timeout_seconds
                )
            except FileNotFoundError:
                if not own:
                    raise
        elif not own:
            await self.list(path)
        entries = [entry for entry in walk.entries if self._shows_base(entry.path)] + own
        entries.sort(key=lambda entry: entry.path)
        return walk.first(entries, max_entries)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        await self.stat(path)
        found = Hits(hits=())
        names = None if only is None else [name for name in only if self._shows_base(name)]
        if names or (only is None and self._shows_base(path)):
            try:
                found = await self._base.grep(
                    text, path, only=names, max_hits=max_hits, timeout_seconds=timeout_seconds
                )
            except FileNotFoundError:
                found = Hits(hits=())
        own = await asyncio.to_thread(self._own_hits, text, path, only, max_hits, timeout_seconds)
        hits = [hit for hit in found.hits if self._shows_base(hit.path)] + list(own.hits)
        hits.sort(key=lambda hit: (hit.path, hit.line_number))
        return Hits(
            hits=tuple(hits[:max_hits]),
            complete=found.complete and own.complete and len(hits) <= max_hits,
            unsearched=found.unsearched + own.unsearched,
            unsearched_paths=(*found.unsearched_paths, *own.unsearched_paths),
        )

    def _own_hits(
        self,
        text: str,
        path: str,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        search = TextSearch(text, max_hits=max_hits, deadline=time.monotonic() + timeout_seconds)
        wanted = None if only is None else set(only)
        for file in list(self._staged.values()):
            is_searched = file.path == path or (
                file.path.startswith(path.rstrip("/") + "/") and not _is_git(file.path, path)
            )
            if wanted is not None:
                is_searched = file.path in wanted
            if is_searched and file.after is not None:
                search.file(file.path, [file.after])
        return search.result()

    def _shows_base(self, path: str) -> bool:
        """Return whether the file of `base` at a path is visible."""
        if path in self._staged or self._is_below_own_file(path):
            return False
        return not any(path == gone or path.startswith(gone + "/") for gone in self._removed)

    def _is_below_own_file(self, path: str) -> bool:
        """Return whether a parent of the path is a file of this overlay."""
        while (path := posixpath.dirname(path)) != "/":
            if self._own_file(path) is not None:
                return True
        return False

    def _own_file(self, path: str) -> StagedFile | None:
        """Return the file of this overlay at a path, unless it was deleted."""
        staged = self._staged.get(path)
        return staged if staged is not None and staged.after is not None else None

    def _staged_below(self, path: str) -> Iterator[StagedFile]:
        below = path.rstrip("/") + "/"
        for name, file in self._staged.items():
            if file.after is not None and name.startswith(below):
                yield file

    async def _base_content(self, path: str) -> bytes | None:
        """Return a file's current content in `base`, to compare with when changes are applied.

        Raises:
            ToolMistake: The file has changed since the agent read it.
        """
        try:
            data = await self._base.read_bytes(path, MAX_STAGED_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(data) > MAX_STAGED_BYTES:
            raise ToolMistake(
                f"{path} is larger than {MAX_STAGED_BYTES} bytes, the most that a sub-agent may "
                "change or delete. Say what is to be done with it in your result."
            )
        if self._shows_base(path) and self._seen.get(path, "") not in {"", await _version(data)}:
            raise ToolMistake(
                f"{path} changed since you read it. Read it again before you edit it."
            )
        return data

    async def _refuse_write(self, path: str, *, create_only: bool) -> None:
        try:
            kind = (await self.stat(path)).kind
        except (FileNotFoundError, NotADirectoryError):
            kind = None
        if kind is not None and create_only:
            raise FileExistsError(path)
        if kind == "directory":
            raise IsADirectoryError(path)
        parent = posixpath.dirname(path)
        while parent != "/":
            try:
                if (await self.stat(parent)).kind != "directory":
                    raise NotADirectoryError(path)
            except FileNotFoundError:
                parent = posixpath.dirname(parent)
            else:
                return

    async def _change(self, path: str, after: bytes | None) -> None:
        """Stage a file's new content, or its deletion."""
        staged = self._staged.get(path)
        before = staged.before if staged is not None else await self._base_content(path)
        self._stage(StagedFile(path, before, after, time.time()))

    async def _delete_directory(self, path: str) -> None:
        walk = await self.walk(path, max_entries=MAX_DELETED_FILES, timeout_seconds=DELETE_SECONDS)
        if not walk.complete:
            raise ToolMistake(
                f"{path} holds more than {MAX_DELETED_FILES} files. Delete parts of it."
            )
        for entry in walk.entries:
            with suppress(OSError):  # a broken link remains, and so does its directory
                await self._change(entry.path, None)
        self._removed.add(path)

    def _stage(self, file: StagedFile) -> None:
        total = sum(other.size_bytes for name, other in self._staged.items() if name != file.path)
        if total + file.size_bytes > MAX_STAGED_BYTES:
            raise ToolMistake(
                f"Your changes would exceed {MAX_STAGED_BYTES} bytes, the most for a sub-agent. "
                "End here and say what is left to do."
            )
        self._staged[file.path] = file


def _entry(file: StagedFile) -> Entry:
    return Entry(
        path=file.path,
        kind="file",
        size_bytes=len(file.after or b""),
        modified_at=file.changed_at,
    )


def _is_git(path: str, base: str) -> bool:
    return ".git" in path[len(base) :].split("/")[:-1]


async def _version(data: bytes) -> str:
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()


def _packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
