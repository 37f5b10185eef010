"""Which jobs change, for all readers of this process by one subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fanout.orchestrator.client import JobClient

MAX_GATHERED = 10_000
"""Ids that a reader which is behind gathers; one that is further behind reads the list again."""


class _Reader:
    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.has_missed = True
        self.ready = asyncio.Event()

    def add(self, ids: set[str]) -> None:
        self.ids |= ids
        if not ids or len(self.ids) > MAX_GATHERED:
            self.ids.clear()
            self.has_missed = True
        self.ready.set()

    def take(self) -> list[frozenset[str]]:
        self.ready.clear()
        missed, self.has_missed = self.has_missed, False
        ids, self.ids = frozenset(self.ids), set()
        return [*([frozenset[str]()] if missed else []), *([ids] if ids else [])]


class ChangedJobs:
    """The ids of changed jobs.

    Args:
        client: The connection of the service.
    """

    def __init__(self, client: JobClient) -> None:
        self._client = client
        self._readers: set[_Reader] = set()

    async def run(self) -> None:
        """Pass on what changes until cancelled."""
        async for ids in self._client.changed_jobs():
            for reader in self._readers:
                reader.add(ids)

    async def batches(self) -> AsyncIterator[frozenset[str]]:
        """Yield the ids of jobs that changed; an empty batch says that some may be missed.

        The first batch is empty: whatever was read before it may be old.
        """
        reader = _Reader()
        self._readers.add(reader)
        reader.ready.set()
        try:
            while True:
                await reader.ready.wait()
                for batch in reader.take():
                    yield batch
        finally:
            self._readers.discard(reader)
