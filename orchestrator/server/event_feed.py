"""The events of jobs for all readers of this process: journals, and changed jobs.

Each entry of a journal is read from Redis and encoded as a server-sent event once per process.
A reader takes entries from its job's window, and reads older ones from the journal itself. So a
slow reader blocks nothing, and a reader that returns with the last id it has seen misses nothing,
on any server. One subscription announces changed jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from itertools import dropwhile

from ..cancellation import cancel_and_wait
from ..client import JobClient
from ..jobs.store.journal import JournalEvent

MAX_GATHERED = 10_000
"""The most ids that a slow reader collects; one that is further behind reads the list again."""
WINDOW = 256
"""The most entries that are kept of a followed job; a reader that is further behind reads the
journal."""
WINDOW_BYTES = 512 * 1024
"""The most bytes of the entries that are kept of a followed job."""
PAGE = 100
"""The entries that a reader reads at once when it is behind."""

Position = tuple[int, int]


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
        """Pass on changes until cancelled."""
        async for ids in self._client.changed_jobs():
            for reader in self._readers:
                reader.add(ids)

    async def batches(self) -> AsyncIterator[frozenset[str]]:
        """Yield the ids of jobs that changed; an empty batch means that some may be missed.

        The first batch is empty: anything read before it may be old.
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


def position(event_id: str) -> Position:
    """Return the id of an entry as numbers, which sort as the journal does."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


def frame(event: JournalEvent) -> bytes:
    """Return an entry as a server-sent event."""
    return f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()


class _Window:
    """The newest entries of one job, and its follower."""

    def __init__(self, client: JobClient, job_id: str, after: str) -> None:
        self._client = client
        self._job_id = job_id
        self._frames: deque[tuple[Position, bytes, bool]] = deque()
        self._bytes = 0
        self.begin = position(after)
        self.readers = 0
        self.changed = asyncio.Event()
        self.failure: Exception | None = None
        self.follower = asyncio.create_task(self._follow(after))

    def after(self, seen: Position) -> list[tuple[Position, bytes, bool]] | None:
        """Return the entries after a position; None when older entries are needed."""
        if seen < self.begin:
            return None
        if not self._frames or self._frames[-1][0] <= seen:
            return []
        return list(dropwhile(lambda entry: entry[0] <= seen, self._frames))

    async def _follow(self, after: str) -> None:
        try:
            async for event in self._client.events(self._job_id, after):
                self._add(event)
            self._announce()
        except Exception as failure:  # noqa: BLE001 - it is raised for each reader
            self.failure = failure
            self._announce()

    def _add(self, event: JournalEvent) -> None:
        encoded = frame(event)
        self._frames.append((position(event.id), encoded, event.ends_job))
        self._bytes += len(encoded)
        while len(self._frames) > WINDOW or (self._bytes > WINDOW_BYTES and len(self._frames) > 1):
            self.begin, dropped, _ = self._frames.popleft()
            self._bytes -= len(dropped)
        self._announce()

    def _announce(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class EventFeed:
    """Follows each job once, for any number of readers.

    Args:
        client: The connection of the service.
    """

    def __init__(self, client: JobClient) -> None:
        self._client = client
        self._windows: dict[str, _Window] = {}

    async def frames(self, job_id: str, after: str) -> AsyncIterator[bytes]:
        """Yield the entries of a journal after an id as events, until the job's end.

        The caller has checked that the reader may see the job.

        Raises:
            UnknownJob: The journal no longer exists.
            LedgerUnavailable: Redis was unavailable for longer than an outage is tolerated.
        """
        seen = position(after)
        async with self._window(job_id, await self._begin(job_id, after)) as window:
            while True:
                changed = window.changed
                found = window.after(seen)
                if found is None:
                    found = await self._page(job_id, seen)
                for seen, encoded, is_end in found:  # noqa: B007 - how far it was read
                    yield encoded
                    if is_end:
                        return
                if not found:
                    if window.failure is not None:
                        raise window.failure
                    if window.follower.done():  # the reader knows the job's end already
                        return
                    await changed.wait()

    async def _begin(self, job_id: str, after: str) -> str:
        """Return where a window begins.

        A reader may name an id that the journal has not reached; others do not wait for that.
        """
        last = await self._client.last_event(job_id)
        return after if last is None else min(after, last.id, key=position)

    async def _page(self, job_id: str, seen: Position) -> list[tuple[Position, bytes, bool]]:
        after = f"{seen[0]}-{seen[1]}"
        events = await self._client.read_events(job_id, after, PAGE)
        return [(position(one.id), frame(one), one.ends_job) for one in events]

    @contextlib.asynccontextmanager
    async def _window(self, job_id: str, after: str) -> AsyncIterator[_Window]:
        window = self._windows.get(job_id)
        if window is None or window.failure is not None:
            window = self._windows[job_id] = _Window(self._client, job_id, after)
        window.readers += 1
        try:
            yield window
        finally:
            window.readers -= 1
            if not window.readers:
                if self._windows.get(job_id) is window:
                    del self._windows[job_id]
                await cancel_and_wait(window.follower)
