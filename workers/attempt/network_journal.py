"""Appends a job's connections to its journal.

The first ones are appended one by one. Later ones are summed by host, and the sums are appended at
growing intervals, so that a journal stays small however many connections a job makes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace

from pydantic import JsonValue

from fanout.orchestrator.cancellation import cancel_and_wait, ended
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.workers.agent.session_journal import AttemptJournal
from fanout.workers.sandbox import ConnectionRecord, NetworkLimitReached, SandboxSpec, TrafficRecord

SINGLE_CONNECTIONS = 100
"""Connections of an attempt that are appended one by one: as many as a person reads."""
SUMMARY_SECONDS = 10.0
"""Until the first summary; the interval doubles with each one, so that a day has about 20."""
MAX_SUMMARY_SECONDS = 3600.0
"""The longest interval: a person who watches a job sees its traffic within the hour."""
SUMMARY_HOSTS = 50
"""Hosts of a summary, the rest together: a job may ask for any number of names."""
OTHER_HOSTS = "(other hosts)"
REASON_CHARACTERS = 300
"""Of a refusal's reason, which lists the hosts that are allowed."""
LAST_SECONDS = 1.0
"""For the last entries of an attempt: it must end even if Redis does not answer."""


@dataclass
class _Sum:
    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, record: ConnectionRecord) -> None:
        self.connections += record.is_allowed
        self.refused += not record.is_allowed
        self.sent_bytes += record.sent_bytes
        self.received_bytes += record.received_bytes


class NetworkJournal:
    """Writes the connections of one attempt.

    Args:
        journal: The attempt's journal.
    """

    def __init__(self, journal: AttemptJournal) -> None:
        self._journal = journal
        self._left = SINGLE_CONNECTIONS
        self._waiting: deque[tuple[EventType, dict[str, JsonValue]]] = deque()
        self._sums: dict[str, _Sum] = {}
        self._changed = asyncio.Event()
        self._ends = asyncio.Event()

    def add(self, record: TrafficRecord) -> None:
        """Add a record; it is appended soon."""
        if isinstance(record, NetworkLimitReached):
            self._waiting.append((EventType.NETWORK_LIMIT, asdict(record)))
        elif self._left > 0:
            self._left -= 1
            self._waiting.append((EventType.NETWORK_CONNECTION, _readable(record)))
        else:
            host = f"{record.host}:{record.port}"
            if host not in self._sums and len(self._sums) >= SUMMARY_HOSTS:
                host = OTHER_HOSTS
            self._sums.setdefault(host, _Sum()).add(record)
            return
        self._changed.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Append records while the context is open, and the rest at its end."""
        tasks = [asyncio.create_task(self._write_single()), asyncio.create_task(self._write_sums())]
        try:
            yield
        finally:
            # What is being appended is not cancelled: nobody would know whether it has been.
            self._ends.set()
            self._changed.set()
            await ended(LAST_SECONDS, *tasks)
            await cancel_and_wait(*tasks)

    async def _write_single(self) -> None:
        is_last = False
        while not is_last:
            await self._changed.wait()
            self._changed.clear()
            is_last = self._ends.is_set()
            with contextlib.suppress(JobFailure):  # the attempt meets the failure itself
                await self._append_waiting()

    async def _write_sums(self) -> None:
        seconds, is_last = SUMMARY_SECONDS, False
        while not is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ends.wait()
            seconds, is_last = min(2 * seconds, MAX_SUMMARY_SECONDS), self._ends.is_set()
            with contextlib.suppress(JobFailure):
                await self._append_sums()

    async def _append_waiting(self) -> None:
        while self._waiting:
            kind, data = self._waiting[0]
            await self._journal.note(kind, data)
            self._waiting.popleft()

    async def _append_sums(self) -> None:
        if not self._sums:
            return
        sums, self._sums = self._sums, {}
        hosts: dict[str, JsonValue] = {host: asdict(total) for host, total in sums.items()}
        await self._journal.note(EventType.NETWORK_SUMMARY, {"hosts": hosts})


@contextlib.asynccontextmanager
async def journaled_network(
    journal: AttemptJournal, spec: SandboxSpec
) -> AsyncIterator[SandboxSpec]:
    """Yield the specification of a sandbox whose connections are appended to the journal.

    What earlier attempts used of the job's network budget is counted.

    Args:
        journal: The attempt's journal.
        spec: What the sandbox needs.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if not isinstance(spec.limits.network, tuple):
        yield spec
        return
    network = NetworkJournal(journal)
    used = _used_bytes(await journal.entries())
    async with network.running():
        yield replace(spec, network_used_bytes=used, on_traffic=network.add)


def _readable(record: ConnectionRecord) -> dict[str, JsonValue]:
    data: dict[str, JsonValue] = {
        "host": record.host,
        "port": record.port,
        "allowed": record.is_allowed,
        "sent_bytes": record.sent_bytes,
        "received_bytes": record.received_bytes,
        "seconds": record.seconds,
    }
    if record.reason:
        data["reason"] = record.reason[:REASON_CHARACTERS]
    if record.secret:
        data["secret"] = record.secret
    return data


def _used_bytes(entries: list[JournalEvent]) -> int:
    return sum(_used(entry) for entry in entries)


def _used(entry: JournalEvent) -> int:
    if entry.type is EventType.NETWORK_CONNECTION:
        return _bytes(entry.data)
    if entry.type is EventType.NETWORK_SUMMARY:
        hosts = entry.data.get("hosts")
        return sum(map(_bytes, hosts.values())) if isinstance(hosts, dict) else 0
    return 0


def _bytes(data: JsonValue) -> int:
    if not isinstance(data, dict):
        return 0
    counts = (data.get("sent_bytes"), data.get("received_bytes"))
    return sum(count for count in counts if isinstance(count, int))
