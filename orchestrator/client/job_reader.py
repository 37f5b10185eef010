"""`JobReader`: reads jobs and workers from the ledger and the journals."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Self

from redis.asyncio import Redis

from ..configuration.settings import Settings, load_settings
from ..jobs.accounts import JobAccount, OwnAccounts
from ..jobs.approvals import Approval
from ..jobs.budget import BudgetState
from ..jobs.result import CollectionState, JobResult, Usage
from ..jobs.spec import JobSpec
from ..jobs.state import JobRecord, JobState
from ..jobs.store.connection import connect
from ..jobs.store.fleet import Fleet
from ..jobs.store.fleet_totals import FleetTotals
from ..jobs.store.journal import (
    BEGINNING,
    PAGE,
    RECONNECT_SECONDS,
    Journal,
    JournalEvent,
)
from ..jobs.store.keys import Keys
from ..jobs.store.memory import RedisMemory
from ..jobs.store.model_states import ClosedModel, counted
from ..jobs.store.records import Ownership, StateCounts
from ..jobs.store.records import Records as JobRecords
from ..jobs.store.script_summaries import ScriptSummaries
from ..jobs.store.waiting import WAITING_STATES, WaitingReasons
from ..jobs.worker_info import WorkerInfo
from ..scripts.progress import ScriptProgress, ScriptReader
from .attachment import attach
from .growing_tree import RECORDS_AT_ONCE, GrowingTree
from .id_search import IdSearch
from .job_pages import JobFilter, JobPages

GATHERED_SECONDS = 0.03
"""The time in which announcements are collected: a person does not notice it, and a job with a
hundred steps a second is read thirty times."""
COLLECTED_SECONDS = 10.0
"""How long a caller who needs a job's changes waits for them after its end. The changes of hundreds
of jobs that were stopped at once are collected within that time."""
COLLECTED_POLL_SECONDS = 0.2
"""The time between two checks: a person does not notice it."""
ID_PART = re.compile(r"[A-Za-z0-9_-]+")
"""The form of a part of a job's id; patterns of Redis give other characters a meaning."""


class Announcements:
    """The ids of jobs whose journals have new events, by one subscription."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._pattern = keys.journal_changed("*")

    async def __call__(self) -> AsyncIterator[set[str]]:
        """Yield the ids of jobs that have changed since the last time.

        An empty set means that some may have been missed, because the connection is new.
        """
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.psubscribe(self._pattern)
                    yield set()
                    while True:
                        yield await self._next(pubsub)
            except Exception:  # noqa: BLE001 - a broken connection is replaced
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _next(self, pubsub: Any) -> set[str]:
        loop = asyncio.get_running_loop()
        changed: set[str] = set()
        until = None
        while until is None or (left := until - loop.time()) > 0:
            message = await pubsub.get_message(timeout=1.0 if until is None else left)
            if message is not None:
                changed.add(str(message["data"]))
                until = until or loop.time() + GATHERED_SECONDS
        return changed


@dataclass(frozen=True)
class PastRun:
    """A tree of jobs, for a list of what was done."""

    root_id: str
    first: JobRecord | None
    """Its root job, or the first one of jobs that were submitted together; None: it no longer
    exists."""
    states: Mapping[str, int]
    """The number of its jobs in each state."""
    usage: Usage
    """The usage of all its jobs."""


Ids = list[str]
Records = list[JobRecord]
Workers = list[WorkerInfo]
Models = list[ClosedModel]
Approvals = list[Approval]
Accounts = list[JobAccount]
PastRuns = list[PastRun]
Budgets = list[BudgetState]
MaybeStates = list[str | None]
States = list[Mapping[str, int]]
Sizes = list[int]
Events = list[JournalEvent]
"""The type is defined here because a method of the reader is called `list`."""


class JobReader:
    """A connection to the ledger and the journals, for one event loop, that changes nothing.

    Every method raises `LedgerUnavailable` when Redis does not answer.

    It is a separate class because its imports take a quarter of a second: no Celery, no blob store,
    no agent definitions.

    Args:
        redis_url: The Redis that the workers use.
        prefix: The beginning of the installation's keys there (FANOUT_REDIS_PREFIX).
    """

    _held: IO[bytes] | None = None
    """The file that keeps this machine's Redis running while it is open."""

    def __init__(self, redis_url: str, prefix: str = Keys.prefix) -> None:
        self._keys = keys = Keys(prefix)
        self._redis: Redis = connect(redis_url)
        self._records = JobRecords(self._redis, keys)
        self._ids = IdSearch(self._redis, keys)
        self._journal = Journal(self._redis, keys)
        self._summaries = ScriptSummaries(self._redis, keys)
        self.fleet = Fleet(self._redis, keys)
        self.totals = FleetTotals(self._redis, keys)
        self.changed_jobs = Announcements(self._redis, keys)

    async def memory(self) -> RedisMemory:
        """Return how much of its memory Redis uses, with the thresholds of the installation."""
        return await self._records.memory()

    @property
    def pages(self) -> JobPages:
        """Pages of jobs, newest first."""
        return JobPages(self._records, self._reasons())

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """Return a reader for these settings, or for those of the environment.

        Without FANOUT_REDIS_URL it reads the Redis that runs on this machine (`fanout up`).

        Raises:
            InvalidSetting: A value is not allowed.
            LedgerUnavailable: No Redis is configured or running.
        """
        found, held = attach(settings or load_settings())
        reader = cls(str(found.redis_url), found.redis_prefix)
        reader._held = held
        return reader

    async def __aenter__(self) -> Self:
        """Return itself; connections are opened when they are first used."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._journal.close()
        await self._redis.aclose()
        if self._held is not None:
            self._held.close()

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record.

        Raises:
            UnknownJob: The job does not exist.
        """
        return (await self._reasons().explain([await self._records.get(job_id)]))[0]

    async def owner_of(self, job_id: str) -> Ownership | None:
        """Return to whom a job belongs; None when it does not exist."""
        return await self._records.owner_of(job_id)

    async def owners_of(self, job_ids: Ids) -> list[Ownership | None]:
        """Return to whom each job belongs; None for one that does not exist."""
        return await self._records.owners_of(job_ids)

    async def known_as(self, specs: Sequence[JobSpec]) -> Ids:
        """Return for each specification the id of the job that has its idempotency key, or its own.

        A job that has its own id need not exist.
        """
        return await self._records.known_as(specs)

    async def records(self, job_ids: Iterable[str]) -> Records:
        """Return the records of those jobs that exist, with the models for which they wait.

        The other reasons why queued ones wait are left out.
        """
        return await self._reasons().with_models(await self._records.get_many(job_ids))

    async def budgets(self, job_ids: Sequence[str]) -> Budgets:
        """Return the budget of each job together with the jobs below it; see `budget`."""
        return await self._records.budgets(job_ids)

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result, None until it has ended.

        Raises:
            UnknownJob: The job does not exist.
            NotUnderstood: Another release wrote what became of the job or of its changes, in a form
                that this one does not know.
        """
        return await self._records.shown_result(job_id)

    async def wait(self, job_id: str, timeout_seconds: float | None = None) -> JobResult:
        """Wait for a job's end and return its result.

        It continues after an outage of Redis shorter than `OUTAGE_SECONDS`.

        Raises:
            UnknownJob: The job does not exist.
            TimeoutError: The job has not ended after `timeout_seconds`; it continues.
        """
        result = await self.result(job_id)  # an unknown job or a missing Redis is reported at once
        if result is not None:
            return result
        async with asyncio.timeout(timeout_seconds):
            return await self._journal.at_end(job_id, partial(self.result, job_id))

    async def complete_result(self, job_id: str) -> JobResult | None:
        """Return a job's result as `result` does, with its changes.

        If they are still being collected, they are awaited for `COLLECTED_SECONDS`.

        Raises:
            UnknownJob: The job does not exist.
        """
        until = time.monotonic() + COLLECTED_SECONDS
        while True:
            result = await self.result(job_id)
            pending = result is not None and result.collection is CollectionState.PENDING
            if not pending or time.monotonic() > until:
                return result
            await asyncio.sleep(COLLECTED_POLL_SECONDS)

    async def approvals(self) -> Approvals:
        """Return the calls that wait for a person's decision, oldest first."""
        return await self._records.approvals()

    async def job_of_approval(self, approval_id: str) -> str | None:
        """Return the id of the job that waits, or waited, for an approval; None: unknown."""
        return await self._records.job_of_approval(approval_id)

    async def knows_approval(self, approval_id: str) -> bool:
        """Return whether an approval has this id, waiting or answered."""
        return await self._records.knows_approval(approval_id)

    async def list(
        self,
        *,
        states: Collection[JobState] | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> Records:
        """Return jobs, oldest first.

        Args:
            states: Only jobs in one of these; None for all.
            labels: Only jobs with all of these.
            limit: The newest jobs, at most so many.
        """
        parts = self.parts(states=states, labels=labels, limit=limit)
        return [record async for part in parts for record in part]

    async def parts(
        self,
        *,
        states: Collection[JobState] | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int,
    ) -> AsyncGenerator[Records, None]:
        """Yield the jobs of `list` in parts, oldest first, without holding all of them.

        Args:
            states: Only jobs in one of these; None for all.
            labels: Only jobs with all of these.
            limit: The newest jobs, at most so many.
        """
        wanted = JobFilter(states=states, labels=labels)
        span, reasons = await self._span(wanted, limit), self._reasons()
        while span and limit:
            step = await self._records.oldest(
                span.start, span.stop, RECORDS_AT_ONCE, live_only=wanted.live_only
            )
            sketches = await self._records.sketches([job_id for job_id, _ in step.jobs])
            fitting = [sketch.id for sketch in sketches if wanted.fits(sketch)][:limit]
            limit -= len(fitting)
            records = await self._records.get_many(fitting)
            if found := [one for one in records if states is None or one.state in states]:
                yield await reasons.explain(found)
            span = range(step.next, span.stop)

    async def _span(self, wanted: JobFilter, limit: int) -> range:
        """Return the positions between which the newest jobs that fit are, at most `limit`."""
        newest = await self._records.newest(None, None, 1)
        if not newest:
            return range(0)
        stop = newest[0][1] + 1
        if await self._records.count(live_only=wanted.live_only) <= limit:
            return range(await self._records.oldest_position(live_only=wanted.live_only), stop)
        if wanted.states is None and not wanted.labels:
            return range(await self._records.position_of_newest(limit), stop)
        found, before = 0, None
        while True:
            page = await self._records.newest(
                None, before, RECORDS_AT_ONCE, live_only=wanted.live_only
            )
            fitting = {
                one.id
                for one in await self._records.sketches([job_id for job_id, _ in page])
                if wanted.fits(one)
            }
            for job_id, position in page:
                before = position
                found += job_id in fitting
                if found == limit:
                    return range(position, stop)
            if len(page) < RECORDS_AT_ONCE:
                return range(before or 0, stop)

    async def tree(self, job_id: str, limit: int | None = None) -> Records:
        """Return the jobs of a tree, oldest first, parents before children.

        Args:
            job_id: Any job of the tree, or the tree's root id.
            limit: The oldest jobs, at most so many; None: all.

        Raises:
            UnknownJob: Neither a job nor a tree has this id.
        """
        return await self.growing_tree(job_id).read(limit)

    async def tree_parts(
        self, job_id: str, *, parent_id: str | None = None
    ) -> AsyncGenerator[Records, None]:
        """Yield the jobs of `tree` in parts, without holding all of them.

        Args:
            job_id: Any job of the tree, or the tree's root id.
            parent_id: Only the jobs that this one has submitted; None: all.

        Raises:
            UnknownJob: Neither a job nor a tree has this id.
        """
        root_id, reasons = await self.root(job_id), self._reasons()
        async for ids in self._records.tree_steps(root_id, parent_id=parent_id):
            yield await reasons.explain(await self._records.get_many(ids))

    def growing_tree(self, job_id: str) -> GrowingTree:
        """Return a job's tree; a second reading reads only jobs that may have changed."""
        return GrowingTree(self._records, self._reasons, job_id)

    async def root(self, job_id: str) -> str:
        """Return the root id of a job's tree, or `job_id` if it is one.

        Raises:
            UnknownJob: Neither a job nor a tree has this id.
        """
        return await self._records.root(job_id)

    async def tree_sizes(self, root_ids: Iterable[str]) -> Sizes:
        """Return the number of each tree's jobs."""
        return await self._records.tree_sizes(root_ids)

    async def script_progress(self, job_id: str) -> ScriptProgress:
        """Return how a script stands; its journal is read as long as its worker has stored nothing.

        Args:
            job_id: A job that runs a script.
        """
        summary = await self._summaries.read(job_id)
        if summary is not None:
            return ScriptProgress.model_validate_json(summary, extra="ignore")
        script = ScriptReader()
        async for event in self.events(job_id, follow=False):
            script.add(event)
        return script.progress()

    async def tree_usage(self, root_id: str) -> Usage:
        """Return the usage of all jobs of a tree, including running ones."""
        return await self.usage(root_id)

    async def usage(self, job_id: str) -> Usage:
        """Return the usage of a job together with the jobs below it."""
        return (await self._records.usage([job_id]))[0]

    async def budget(self, job_id: str) -> BudgetState:
        """Return what is used, reserved and left of a job's budget, with the jobs below it.

        Under the id of a tree's root it is that of the whole tree.
        """
        return (await self._records.budgets([job_id]))[0]

    async def accounts(self) -> AsyncGenerator[Accounts, None]:
        """Yield what each job whose record still exists has used itself, newest first, in parts."""
        own, before = OwnAccounts(), None
        while page := await self._records.newest(None, before, RECORDS_AT_ONCE):
            before = page[-1][1]
            jobs = await self._records.accounts([job_id for job_id, _ in page])
            above = await self._above(jobs)
            yield [own.account(job, above) for job in jobs]

    async def _above(self, jobs: Accounts) -> dict[str, JobAccount]:
        """Return the jobs above some jobs, as far as their records still exist."""
        found: dict[str, JobAccount] = {}
        while wanted := {job.parent_id for job in jobs if job.parent_id} - found.keys():
            jobs = await self._records.accounts(sorted(wanted))
            found |= {job.id: job for job in jobs}
        return found

    async def past_runs(self, limit: int, before: str | None = None) -> PastRuns:
        """Return the trees of jobs whose records still exist, those that began last first.

        Args:
            limit: At most so many.
            before: Only those before the tree with this root id; none if there is no such tree.
        """
        position, roots = None, Ids()
        if before is not None:
            oldest = await self._records.oldest_of_tree(before)
            position = oldest[1] if oldest else 0
        while len(roots) < limit:
            page = await self._records.newest(None, position, RECORDS_AT_ONCE)
            if not page:
                break
            position = page[-1][1]
            roots += await self._records.trees_begun_by([job_id for job_id, _ in page])
        return [await self._past_run(root) for root in roots[:limit]]

    async def states(self, job_ids: Ids) -> MaybeStates:
        """Return the state of each job; None for one that no longer exists."""
        return await self._records.states(job_ids)

    async def state_counts(self, *, begin_again: bool = False) -> StateCounts:
        """Return how many jobs are in which state, as `Records.state_counts`."""
        return await self._records.state_counts(begin_again=begin_again)

    async def newest_queued(self, most: int) -> Records:
        """Return queued jobs, newest first, of the newest ones that have not ended.

        Args:
            most: At most so many; fewer where the newest jobs are in other states.
        """
        newest = await self._records.newest_live(RECORDS_AT_ONCE)
        states = await self._records.states(newest)
        queued = [
            job_id for job_id, state in zip(newest, states, strict=True) if state == JobState.QUEUED
        ]
        return await self._reasons().explain(await self._records.get_many(queued[:most]))

    async def approvals_count(self) -> int:
        """Return how many calls wait for a person."""
        return await self._records.approvals_count()

    async def tree_states(self, root_ids: Iterable[str]) -> States:
        """Return for each tree how many of its jobs are in which state."""
        return await asyncio.gather(*map(self._records.tree_states, root_ids))

    async def _past_run(self, root_id: str) -> PastRun:
        oldest = await self._records.oldest_of_tree(root_id)
        first = await self._records.get_many([root_id, *(oldest or ())[:1]])
        usage, [states] = await self.tree_usage(root_id), await self.tree_states([root_id])
        return PastRun(root_id, first[0] if first else None, states, usage)

    async def ids(self) -> Ids:
        """Return the ids of all jobs, oldest first."""
        return await self._records.ids()

    async def find_ids_by_beginning(self, prefix: str, most: int) -> Ids:
        """Return the ids of jobs that begin with a text, sorted; none if it is empty.

        A complete id is returned alone, even if others begin with it. Where more ids match than
        `most`, only some are returned, but more than this number.
        """
        if await self._records.states([prefix]) != [None]:
            return [prefix]
        if not ID_PART.fullmatch(prefix):
            return []
        return sorted(await self._ids.find_by_beginning(prefix, most))

    async def find_ids_by_ending(self, end: str, most: int) -> Ids:
        """Return the ids of jobs that end with a text, sorted; of more than `most`, only some."""
        if not ID_PART.fullmatch(end):
            return []
        return sorted(await self._ids.find_by_ending(end, most))

    async def events(
        self, job_id: str, after: str = BEGINNING, *, follow: bool = True
    ) -> AsyncGenerator[JournalEvent, None]:
        """Yield the events of a job's journal.

        Args:
            job_id: The job.
            after: The id of the event after which to begin.
            follow: Continue until the job's end, also through an outage of Redis.

        Raises:
            UnknownJob: The job does not exist.
        """
        record = await self._records.get(job_id)
        if follow and not record.state.is_terminal:
            async with aclosing(self._journal.follow(job_id, after)) as events:
                async for event in events:
                    yield event
        else:
            while page := await self._journal.read(job_id, after, PAGE):
                for event in page:
                    yield event
                after = page[-1].id

    async def read_events(self, job_id: str, after: str, count: int) -> Events:
        """Return a journal's events after the id `after`, at most `count`; none without a job."""
        return await self._journal.read(job_id, after, count)

    async def read_events_before(self, job_id: str, before: str | None, count: int) -> Events:
        """Return the newest events of a journal before an id, as `Journal.read_before`."""
        return await self._journal.read_before(job_id, before, count)

    async def last_event(self, job_id: str) -> JournalEvent | None:
        """Return the newest event of a journal; None without a job."""
        return await self._journal.last(job_id)

    async def now(self) -> float:
        """Return the time by Redis's clock, which all records use, in seconds since the epoch."""
        return await self._records.now_ms() / 1000

    async def closed_models(self) -> Models:
        """Return the models that are not to be asked now, those first that are tried first."""
        return await self._records.models.closed()

    async def awaited_models(self, records: Iterable[JobRecord]) -> Models:
        """Return the models for which some of these jobs wait, with how many of them do.

        Those come first that are tried first.
        """
        waiting = [one.id for one in records if one.state in WAITING_STATES]
        return counted((await self._records.models.awaited(waiting)).values())

    async def workers(self) -> Workers:
        """Return the workers that are registered and alive."""
        return await self._records.workers()

    async def is_pool_needed(self, pool: str) -> bool:
        """Return whether a pool of workers has a job that it runs, will run, or has parked.

        A queued job of an agent that they do not know does not count, because others run it.
        """
        workers = [worker for worker in await self.workers() if worker.pool == pool]
        async for ids in self._records.of_pool(pool):
            for job in await self._records.get_many(ids):
                is_queued = job.state is JobState.QUEUED
                if not is_queued or any(one.reads(job.wire, job.agent) for one in workers):
                    return True
        return False

    def _reasons(self) -> WaitingReasons:
        """Return the object that explains one list of jobs."""
        return WaitingReasons(self._redis, self._keys)
