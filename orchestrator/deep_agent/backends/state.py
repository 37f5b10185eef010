"""Files in an ADK session's state, which exist as long as the session.

Each file has its own key, so that parallel calls that write different files never overwrite each
other, and a write costs the size of one file, not of all. Files in the single `files` dictionary of
older sessions are read too.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from fanout.orchestrator.deep_agent.backends.matching import hits_in
from fanout.orchestrator.deep_agent.backends.protocol import Entry, Hit, Hits, Walk

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
        record = self._record(path)
        if record is not None:
            return _entry(path, record)
        fixed = {"/", self._search_root}
        if path in fixed or any(name.startswith(path + "/") for name, _ in self._files()):
            return Entry(path=path, kind="directory")
        if any(self._record(parent) is not None for parent in _parents(path)):
            raise NotADirectoryError(path)
        raise FileNotFoundError(path)

    async def list(self, path: str) -> Sequence[Entry]:
        if (await self.stat(path)).kind == "file":
            raise NotADirectoryError(path)
        below = path.rstrip("/") + "/"
        entries: dict[str, Entry] = {}
        for name, record in self._files():
            if name.startswith(below):
                head, _, rest = name[len(below) :].partition("/")
                child = below + head
                entries[child] = (
                    Entry(path=child, kind="directory") if rest else _entry(child, record)
                )
        return [entries[child] for child in sorted(entries)]

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        record = self._record(path)
        if record is None:
            await self.stat(path)
            raise IsADirectoryError(path)
        return _content(record)[:max_bytes]

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        self._refuse_write(path, create_only=create_only)
        old = self._record(path) or {}
        now = datetime.now(UTC).isoformat()
        self._state[KEY_PREFIX + path] = {
            **_encoded(data),
            "created_at": old.get("created_at", now),
            "modified_at": now,
        }

    async def delete(self, path: str) -> None:
        await self.stat(path)
        for name, _ in list(self._files()):
            if name == path or name.startswith(path.rstrip("/") + "/"):
                # A key of ADK's state cannot be removed; None means that the file was deleted.
                self._state[KEY_PREFIX + name] = None

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        del timeout_seconds  # memory is fast; only the number of entries is limited
        await self.list(path)
        below = path.rstrip("/") + "/"
        entries = [
            _entry(name, record)
            for name, record in self._files()
            if name.startswith(below) and ".git" not in name[len(below) :].split("/")[:-1]
        ]
        entries.sort(key=lambda entry: entry.path)
        return Walk(entries=tuple(entries[:max_entries]), complete=len(entries) <= max_entries)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        deadline = time.monotonic() + timeout_seconds
        found: list[Hit] = []
        for name in only if only is not None else await self._below(path):
            for hit in hits_in([_content(self._record(name) or {})], text, name):
                if len(found) >= max_hits or time.monotonic() > deadline:
                    return Hits(hits=tuple(found), complete=False)
                found.append(hit)
        return Hits(hits=tuple(found))

    async def _below(self, path: str) -> Sequence[str]:
        if (await self.stat(path)).kind == "file":
            return [path]
        walk = await self.walk(path, max_entries=2**31, timeout_seconds=0)
        return [entry.path for entry in walk.entries]

    def _refuse_write(self, path: str, *, create_only: bool) -> None:
        names = {name for name, _ in self._files()}
        if create_only and path in names:
            raise FileExistsError(path)
        if path == "/" or any(name.startswith(path + "/") for name in names):
            raise FileExistsError(path) if create_only else IsADirectoryError(path)
        if names & set(_parents(path)):
            raise NotADirectoryError(path)

    def _files(self) -> Iterator[tuple[str, dict[str, Any]]]:
        state = self._state.to_dict()
        for name, record in dict(state.get(LEGACY_KEY) or {}).items():
            if KEY_PREFIX + name not in state:
                yield name, record
        for key, record in state.items():
            if key.startswith(KEY_PREFIX) and record is not None:
                yield key[len(KEY_PREFIX) :], record

    def _record(self, path: str) -> dict[str, Any] | None:
        state = self._state.to_dict()
        if KEY_PREFIX + path in state:
            record: dict[str, Any] | None = state[KEY_PREFIX + path]
            return record
        return dict(state.get(LEGACY_KEY) or {}).get(path)


def state_with(files: Mapping[str, bytes]) -> DictState:
    """Return a state with files, given by their absolute paths."""
    return DictState({KEY_PREFIX + path: _encoded(data) for path, data in files.items()})


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


def _entry(path: str, record: dict[str, Any]) -> Entry:
    modified = record.get("modified_at")
    return Entry(
        path=path,
        kind="file",
        size_bytes=len(_content(record)),
        modified_at=datetime.fromisoformat(modified).timestamp() if modified else 0.0,
    )
