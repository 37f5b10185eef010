"""A backend whose files can be read and not changed."""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.deep_agent.backends.protocol import Backend, Entry, Hits, Walk


class ReadOnlyBackend:
    """Another backend's files, read-only; without a shell, which could change them.

    Every change raises PermissionError.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def search_root(self) -> str:
        """The other backend's search root."""
        return self._backend.search_root

    async def stat(self, path: str) -> Entry:
        return await self._backend.stat(path)

    async def list(self, path: str) -> Sequence[Entry]:
        return await self._backend.list(path)

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        return await self._backend.read_bytes(path, max_bytes)

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        del data, create_only
        raise PermissionError(path)

    async def delete(self, path: str) -> None:
        raise PermissionError(path)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        return await self._backend.walk(
            path, max_entries=max_entries, timeout_seconds=timeout_seconds
        )

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        return await self._backend.grep(
            text, path, only=only, max_hits=max_hits, timeout_seconds=timeout_seconds
        )
