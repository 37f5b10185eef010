"""Files in an ADK session's state, which exist as long as the session.

Each file has its own key, so that parallel calls that write different files never overwrite each
other, and a write costs the size of one file, not of all. Files in the single `files` dictionary of
older sessions are read too.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from .matching import TextSearch
from .protocol import Entry, Hits, Walk

LARGE_CHARACTERS = 256 * 1024
"""A larger content is converted in a thread: it would block all other agents for milliseconds."""

DELETED_AT_ONCE = 500
"""Files of a deleted directory, before others have their turn."""

KEY_PREFIX = "file:"
LEGACY_KEY = "files"


@runtime_checkable
class SessionState(Protocol):
    """The methods of ADK's `State` that a backend needs; a plain dictionary lacks `to_dict`."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Set a key."""

    def to_dict(self) -> dict[str, Any]:
        """Return all keys and values."""


class DictState(dict[str, Any]):
    """A state outside a session: for programs and tests."""

    def to_dict(self) -> dict[str, Any]:
        """Return all keys and values."""
        return dict(self)


def state_copy(state: SessionState | Mapping[str, Any]) -> DictState:
    """Return a copy of a session's state.

    Args:
        state: The state of one of ADK's contexts: its `State`, which is no mapping, or the
            mapping that its read-only context has.
    """
    return DictState(state.to_dict() if isinstance(state, SessionState) else state)


class _Plain:
    """A plain dictionary as a state; it is changed in place."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value

    def to_dict(self) -> dict[str, Any]:
        return dict(self._values)


class StateBackend:
    """Files in a session's state. A directory exists while a file is in it.

    Args:
        state: The session's state, or a dictionary.
        search_root: The directory of the agent's own files, a normalised absolute path.
    """

    def __init__(self, state: SessionState | dict[str, Any], *, search_root: str = "/") -> None:
        self._state: SessionState = state if isinstance(state, SessionState) else _Plain(state)
        self._search_root = search_root

    @property
    def search_root(self) -> str:
        """A directory that always exists."""
        return self._search_root

    async def stat(self, path: str) -> Entry:
        return self._files().stat(path)

    async def real_path(self, path: str) -> str:
        """Return the path: there are no links."""
        return path

    async def list(self, path: str) -> Sequence[Entry]:
        return await asyncio.to_thread(self._files().list, path)

    async def read_bytes(self, path: str, max_bytes: int, *, offset: int = 0) -> bytes:
        files = self._files()
        record = files.record(path)
        if record is None:
            files.stat(path)
            raise IsADirectoryError(path)
        if len(record.get("content", "")) > LARGE_CHARACTERS:
            data = await asyncio.to_thread(_content, record)
        else:
            data = _content(record)
        return data[offset : offset + max_bytes]

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        is_large = len(data) > LARGE_CHARACTERS
        encoded = await asyncio.to_thread(_encoded, data) if is_large else _encoded(data)
        files = self._files()
        files.refuse_write(path, create_only=create_only)
        old = files.record(path) or {}
        now = datetime.now(UTC).isoformat()
        self._state[KEY_PREFIX + path] = {
            **encoded,
            "created_at": old.get("created_at", now),
            "modified_at": now,
        }

    async def delete(self, path: str) -> None:
        files = self._files()
        files.stat(path)
        for number, name in enumerate(await asyncio.to_thread(files.list_names, path), start=1):
            # A key of ADK's state cannot be removed; None means that the file was deleted.
            self._state[KEY_PREFIX + name] = None
            if number % DELETED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        del timeout_seconds  # memory is fast; only the number of entries is limited
        return await asyncio.to_thread(self._files().walk, path, max_entries)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        search = TextSearch(text, max_hits=max_hits, deadline=time.monotonic() + timeout_seconds)
        return await asyncio.to_thread(self._files().grep, search, path, only)

    def _files(self) -> _Files:
        return _Files(self._state.to_dict(), self._search_root)


class _Files:
    """The files at one moment: threads may look through them while the state changes.

    Args:
        state: A copy of the state; what it holds is never changed.
        search_root: A directory that always exists.
    """

    def __init__(self, state: Mapping[str, Any], search_root: str) -> None:
        self._state = state
        self._legacy: Mapping[str, Any] = state.get(LEGACY_KEY) or {}
        self._fixed = {"/", search_root}

    def record(self, path: str) -> dict[str, Any] | None:
        """Return a file's record; None where there is none."""
        key = KEY_PREFIX + path
        record: dict[str, Any] | None = (
            self._state[key] if key in self._state else self._legacy.get(path)
        )
        return record

    def stat(self, path: str) -> Entry:
        record = self.record(path)
        if record is not None:
            return _entry(path, record)
        if path in self._fixed or self._has_files_below(path):
            return Entry(path=path, kind="directory")
        if any(self.record(parent) is not None for parent in _parents(path)):
            raise NotADirectoryError(path)
        raise FileNotFoundError(path)

    def list(self, path: str) -> Sequence[Entry]:
        if self.stat(path).kind == "file":
            raise NotADirectoryError(path)
        below = path.rstrip("/") + "/"
        entries: dict[str, Entry] = {}
        for name, record in self._below(path):
            head, _, rest = name[len(below) :].partition("/")
            child = below + head
            if not rest:
                entries[child] = _entry(child, record)
            elif child not in entries:
                entries[child] = Entry(path=child, kind="directory")
        return [entries[child] for child in sorted(entries)]

    def walk(self, path: str, max_entries: int) -> Walk:
        if self.stat(path).kind == "file":
            raise NotADirectoryError(path)
        found = sorted(self._searched(path), key=lambda each: each[0])
        entries = tuple(_entry(name, record) for name, record in found[:max_entries])
        return Walk(entries=entries, complete=len(found) <= max_entries)

    def grep(self, search: TextSearch, path: str, only: Sequence[str] | None) -> Hits:
        if only is not None:
            names = list(only)
        elif self.stat(path).kind == "file":
            names = [path]
        else:
            names = sorted(name for name, _ in self._searched(path))
        for name in names:
            if search.is_over:
                break
            search.file(name, [_content(self.record(name) or {})])
        return search.result()

    def list_names(self, path: str) -> Sequence[str]:
        """Return the file at a path, or the files below it."""
        return [path] if self.record(path) is not None else [name for name, _ in self._below(path)]

    def refuse_write(self, path: str, *, create_only: bool) -> None:
        """Raise the error of a path at which no file can be written."""
        if create_only and self.record(path) is not None:
            raise FileExistsError(path)
        if path == "/" or self._has_files_below(path):
            raise FileExistsError(path) if create_only else IsADirectoryError(path)
        if any(self.record(parent) is not None for parent in _parents(path)):
            raise NotADirectoryError(path)

    def _has_files_below(self, path: str) -> bool:
        return next(self._below(path), None) is not None

    def _searched(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the files below a directory, except in `.git`."""
        start = len(path.rstrip("/")) + 1
        for name, record in self._below(path):
            if ".git" not in name[start:].split("/")[:-1]:
                yield name, record

    def _below(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        below = path.rstrip("/") + "/"
        for name, record in self._legacy.items():
            if name.startswith(below) and KEY_PREFIX + name not in self._state:
                yield name, record
        start, prefix = len(KEY_PREFIX), KEY_PREFIX + below
        for key, record in self._state.items():
            if key.startswith(prefix) and record is not None:
                yield key[start:], record


def _parents(path: str) -> list[str]:
    """Return the directories above a path, without `/`."""
    return [path[:at] for at, character in enumerate(path) if character == "/" and at]


def _encoded(data: bytes) -> dict[str, str]:
    try:
        return {"content": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(data).decode(), "encoding": "base64"}


def _content(record: dict[str, Any]) -> bytes:
    content = record.get("content", "")
    if isinstance(content, list):
        content = "\n".join(content)
    is_base64 = record.get("encoding") == "base64"
    return base64.b64decode(content) if is_base64 else str(content).encode()


def _size(record: dict[str, Any]) -> int:
    """Return the size in bytes, without making a copy where it can be known."""
    content = record.get("content", "")
    if record.get("encoding") == "base64":
        return len(content) // 4 * 3 - str(content)[-2:].count("=")
    return len(content) if isinstance(content, str) and content.isascii() else len(_content(record))


def _entry(path: str, record: dict[str, Any]) -> Entry:
    modified = record.get("modified_at")
    return Entry(
        path=path,
        kind="file",
        size_bytes=_size(record),
        modified_at=datetime.fromisoformat(modified).timestamp() if modified else 0.0,
    )
