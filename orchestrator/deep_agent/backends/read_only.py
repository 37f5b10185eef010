"""A backend whose files can be read and not changed."""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

from fanout.orchestrator.deep_agent.backends.composite import CompositeBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend


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
