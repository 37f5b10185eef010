"""Retention: removes jobs some time after their end, or before when they take too much room.

Every worker looks for blobs to remove; one worker in turn removes jobs, for all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

import structlog

from fanout.orchestrator.configuration.storage_settings import StorageSettings
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.policy import TenantShare
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.memory import RedisMemory
from fanout.orchestrator.jobs.store.records import Stored
from fanout.orchestrator.workspace.blobs import BlobStore

log = structlog.get_logger(__name__)

LOOKS_PER_RETENTION = 24
"""The number of checks in the time that a job is kept: it is removed late by one of these parts, or
by two if the worker whose turn it was has ended."""
MAX_INTERVAL_SECONDS = 3600.0
"""The longest interval: the jobs of an hour are removed within seconds."""
MARGIN_SECONDS = 3600.0
"""A blob is removed only if it is this much older than the oldest job: a job's snapshot is stored
before the job is, and the clocks of the store and of Redis differ."""
WATCH_SECONDS = 10.0
"""Between two looks at the memory of Redis: at a hundred megabytes a minute, 2 % of a GiB."""
TURN_PART = 0.9
"""The part of an interval for which one worker has the turn: then the first one to look has it."""
EVICT_FROM, EVICT_TO = 0.9, 0.8
"""The parts of an account's limit at which early removal begins and ends: its callers are refused
only if what has not ended takes all of it."""


class Retention:
    """Removes jobs that ended `keep_seconds` ago, and blobs that are older than all other jobs.

    This needs no list of references: a blob that a job uses was stored, or its age was reset, when
    the job was submitted or later.

    Whole trees are removed before that, those that ended first, when the jobs of an owner, of a
    tenant or all of them take more than they may. When Redis has little memory left, the journals
    of ended jobs are shortened to their ends.

    Args:
        ledger: Holds the jobs.
        blobs: Holds the blobs.
        keep_seconds: How long an ended job is kept.
        storage: What jobs may take.
        tenants: The settings of single tenants.
    """

    def __init__(
        self,
        ledger: Ledger,
        blobs: BlobStore,
        keep_seconds: float,
        storage: StorageSettings | None = None,
        tenants: Mapping[str, TenantShare] | None = None,
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._keep_seconds = keep_seconds
        self._storage = storage or StorageSettings()
        self._tenants = tenants or {}
        self._of_tenants = {
            name: share.retention_seconds
            for name, share in self._tenants.items()
            if share.retention_seconds
        }
        self._shortest = min([keep_seconds, *self._of_tenants.values()])
        self._interval = min(self._shortest / LOOKS_PER_RETENTION, MAX_INTERVAL_SECONDS)
        self._warning = ""
        """What was logged last about the memory of Redis, without numbers."""

    async def run(self) -> None:
        """Remove what is due, at intervals, until cancelled; failures are logged."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._remove())
            group.create_task(self._watch())

    async def _remove(self) -> None:
        while True:
            try:
                await self.remove_in_turn()
            except JobFailure as error:
                log.warning("old jobs not removed", error=str(error))
            await asyncio.sleep(self._interval)

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except JobFailure as error:
                log.warning("room not made in Redis", error=str(error))
            await asyncio.sleep(WATCH_SECONDS)

    async def remove_in_turn(self) -> None:
        """Remove blobs that are due; jobs, too, if no other worker does.

        Raises:
            LedgerUnavailable: Redis does not answer.
            JobFailure: The blob store does not answer.
        """
        if await self._ledger.takes_turn("remove_jobs", self._interval * TURN_PART):
            await self.forget_expired()
            await self._ledger.recount()
        await self.remove_blobs()

    async def forget_expired(self) -> None:
        """Remove the jobs that are due now.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        if forgotten := await self._ledger.forget(self._keep_seconds, self._of_tenants):
            log.info("old jobs removed", jobs=forgotten)

    async def remove_blobs(self) -> None:
        """Remove the blobs that no job needs any more.

        Raises:
            LedgerUnavailable: Redis does not answer.
            JobFailure: The blob store does not answer.
        """
        oldest = await self._ledger.oldest_submission()
        until = min(time.time() - self._shortest, oldest or time.time())
        if removed := await self._blobs.sweep(until - MARGIN_SECONDS):
            log.info("old blobs removed", blobs=removed)

    async def look(self) -> None:
        """Log that Redis has little memory left, and make room if no other worker does.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        memory = await self._ledger.memory()
        self._warn(memory)
        if await self._ledger.takes_turn("make_room", WATCH_SECONDS * TURN_PART):
            await self.make_room(memory)

    async def make_room(self, memory: RedisMemory) -> None:
        """Remove before its time what takes more than it may.

        Args:
            memory: That of Redis, now.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        stored = await self._ledger.stored()
        for account, jobs, bytes_ in self._excess(stored, memory):
            evicted = await self._ledger.evict(
                account,
                jobs=jobs,
                bytes_=bytes_,
                min_kept_seconds=self._storage.min_kept_seconds,
            )
            if evicted:
                log.warning("jobs removed before their time", account=account, jobs=evicted)
        if memory.limit_bytes and memory.share >= self._storage.accept_at:
            await self._shorten_journals()

    def _excess(
        self, stored: Mapping[str, Stored], memory: RedisMemory
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the accounts that have too much, with the jobs and bytes to remove of each."""
        for account, found in stored.items():
            most_jobs, most_bytes = self._limits(account, memory.limit_bytes)
            jobs, bytes_ = _excess(found.jobs, most_jobs), _excess(found.bytes, most_bytes)
            if jobs or bytes_:
                yield account, jobs, bytes_

    def _limits(self, account: str, limit_bytes: int) -> tuple[int | None, int | None]:
        """Return how many jobs and bytes an account may have; None: no limit."""
        storage = self._storage
        kind, _, name = account.partition(":")
        if kind == "tenant":
            own = self._tenants.get(name, TenantShare())
            return (
                own.kept_jobs or storage.tenant_jobs,
                own.kept_bytes or storage.bytes_of_tenant(limit_bytes),
            )
        if kind == "owner":
            return storage.owner_jobs, storage.bytes_of_owner(limit_bytes)
        return None, storage.max_bytes

    async def _shorten_journals(self) -> None:
        """Shorten the journals of ended jobs until Redis has room again."""
        count, is_over = 0, False
        while not is_over and (await self._ledger.memory()).share >= self._storage.warn_at:
            shortened, is_over = await self._ledger.shorten_journals(self._storage.min_kept_seconds)
            count += shortened
        if count:
            log.warning("journals of ended jobs shortened: Redis is nearly full", jobs=count)

    def _warn(self, memory: RedisMemory) -> None:
        """Log that Redis has little memory left, or enough again: once, when that changes."""
        if not memory.is_short:
            level = ""
        else:
            level = "refuses" if memory.share >= memory.marks.refuse_at else "short"
        if level != self._warning:
            self._warning = level
            log.warning(memory.warning) if level else log.info("Redis has enough memory again")


def _excess(found: int, most: int | None) -> int:
    """Return how much of it is too much; 0 below the part of the limit where removal begins."""
    return int(found - EVICT_TO * most) if most and found > EVICT_FROM * most else 0
