"""Reads the ledger: job records, results, approvals, workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from redis.asyncio import Redis

from ..accounts import JobAccount, read_account
from ..approvals import Approval
from ..budget import BudgetState, read_budget
from ..failures import NotUnderstood, UnknownJob
from ..policy import AdmissionPolicy
from ..result import DECISIVE, JobResult, ResultSoFar, Usage
from ..spec import JobSpec
from ..state import JobRecord
from ..understood import read_understood
from ..worker_info import WorkerInfo
from .connection import server_time_ms
from .keys import Keys
from .lua_scripts import Scripts
from .memory import RedisMemory, redis_memory
from .model_states import ModelStates
from .redis_errors import redis_failures
from .registrations import Registrations
from .stored import (
    read,
    read_fields,
    read_labels,
    read_owner,
    read_record,
    seconds,
    stored_approval,
    unique_key,
)

FEW_LIVE = 1_000
"""The most live jobs that are read at once: Redis takes half a millisecond."""
COUNTED_AT_ONCE = 1_000
"""The most jobs that one script counts: Redis takes a millisecond."""
SKETCHED_AT_ONCE = 500
"""The most jobs of a tree in one step, whose records are read in one round trip."""
APPROVALS_AT_ONCE = 100
"""The most approvals in one round trip: each has the arguments of a call."""
IDS_AT_ONCE = 1_000
"""The most ids that one command reads of an index: Redis takes a fifth of a millisecond."""
RESULTS_AT_ONCE = 200
"""The most results in one round trip: some megabytes if all of them are large."""


class Ownership(NamedTuple):
    """The owner and the tenant of a job."""

    tenant: str
    owner: str


class StateCounts(NamedTuple):
    """How many jobs are in which state."""

    states: Mapping[str, int]
    is_consistent: bool
    """Whether these are as many as there are jobs; they are not while a process of an earlier
    release submits or deletes jobs, which does not count them."""


class IndexStep(NamedTuple):
    """Some jobs in the order of submission."""

    jobs: list[tuple[str, int]]
    """Their ids and positions."""
    next: int
    """The position at which the next step begins."""


class JobSketch(NamedTuple):
    """What lists of jobs are filtered by, without reading the whole record."""

    id: str
    state: str
    tenant: str
    owner: str
    agent: str
    root_id: str
    parent_id: str
    spec: str
    """The specification, as it is stored; empty where this release finds none."""


class Stored(NamedTuple):
    """What is stored of the jobs of an account."""

    jobs: int
    """Their number, whatever their state."""
    bytes: int
    """About how many bytes their records and journals take."""


NOTHING = Stored(0, 0)


class Uncollected(NamedTuple):
    """An ended job whose changes are not yet collected."""

    job_id: str
    host: str
    """Where its files are."""
    worker: str
    """The worker that ran it."""
    ended_seconds: float
    """How long ago it ended."""


class Records:
    """The job records of one installation, for reading.

    Every method raises LedgerUnavailable when Redis does not respond.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.models = ModelStates(redis, keys)
        """What is known of the models."""
        self._redis = redis
        self._keys = keys
        self.registrations = Registrations(redis, keys)

    @cached_property
    def _counting(self) -> Scripts:
        """The scripts that count jobs, which most readers do not need."""
        return Scripts(self._redis, self._keys, ("state_counts", "tree_states"))

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record.

        Raises:
            UnknownJob: The job does not exist.
            NotUnderstood: Another release wrote its state, in a form that this one does not know.
        """
        stored = await self._stored([job_id])
        if not stored:
            raise UnknownJob(f"There is no job {job_id}.")
        return read_record(*stored[0])

    async def get_many(self, job_ids: Iterable[str]) -> list[JobRecord]:
        """Return the records of those jobs that exist, in the order of their ids.

        Those that `get` cannot read are not among them: one job never hides the others.
        """
        found = []
        for job_id, fields in await self._stored(list(job_ids)):
            with suppress(NotUnderstood):
                found.append(read_record(job_id, fields))
        return found

    async def _stored(self, ids: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
        """Return those jobs that exist with their fields, in the order of their ids."""
        if not ids:
            return []
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hgetall(self._keys.job(job_id))
                pipe.mget(map(self._keys.spec, ids))
                pipe.mget(map(self._keys.result, ids))
                *hashes, specs, results = await pipe.execute()
        found = zip(ids, hashes, specs, results, strict=True)
        return [
            (job_id, {"spec": spec, "result": result} | fields)
            for job_id, fields, spec, result in found
            if fields
        ]

    async def known_as(self, specs: Sequence[JobSpec]) -> list[str]:
        """Return for each specification the id of the job that has its idempotency key, or its own.

        A job that has its own id need not exist.
        """
        keys = {spec.id: key for spec in specs if (key := unique_key(spec))}
        found: Any = []
        if keys:
            with redis_failures():
                found = await self._redis.mget(map(self._keys.idempotency, keys.values()))
        known = dict(zip(keys, found, strict=True))
        return [known.get(spec.id) or spec.id for spec in specs]

    async def specification(self, job_id: str) -> JobSpec:
        """Return the complete specification of a job.

        Raises:
            UnknownJob: The job does not exist.
            NotUnderstood: Another release submitted it, in a form that this one does not know.
        """
        state, spec = await self._state_and(self._keys.spec(job_id), "spec", job_id)
        if state is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return read(JobSpec, spec or "", f"Job {job_id}", extra="forbid")

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result; None until it has ended.

        Raises:
            UnknownJob: The job does not exist.
            NotUnderstood: Another release wrote the result, in a form that this one does not know.
        """
        state, result = await self._state_and(self._keys.result(job_id), "result", job_id)
        if state is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return None if result is None else read(JobResult, result, f"The result of job {job_id}")

    async def shown_result(self, job_id: str) -> JobResult | None:
        """Return what this release understands of a job's result; None until it has ended.

        Raises:
            UnknownJob: The job does not exist.
            NotUnderstood: Another release wrote what became of the job or of its changes, in a form
                that this one does not know.
        """
        state, result = await self._state_and(self._keys.result(job_id), "result", job_id)
        if state is None:
            raise UnknownJob(f"There is no job {job_id}.")
        if result is None:
            return None
        what = f"The result of job {job_id}"
        found, left_out = read_understood(JobResult, read_fields(result), what, decisive=DECISIVE)
        return found.model_copy(update={"not_understood": left_out})

    async def results(self, job_ids: Sequence[str]) -> list[JobResult | None]:
        """Return the results of jobs, in order; None for one that has not ended, or is not stored.

        Raises:
            NotUnderstood: Another release wrote one, in a form that this one does not know.
        """
        found: list[JobResult | None] = []
        for first in range(0, len(job_ids), RESULTS_AT_ONCE):
            ids = job_ids[first : first + RESULTS_AT_ONCE]
            with redis_failures():
                async with self._redis.pipeline(transaction=False) as pipe:
                    for job_id in ids:
                        pipe.hget(self._keys.job(job_id), "result")
                    pipe.mget(map(self._keys.result, ids))
                    *in_records, in_keys = await pipe.execute()
            for job_id, in_record, in_key in zip(ids, in_records, in_keys, strict=True):
                text = in_record or in_key
                found.append(read(JobResult, text, f"The result of job {job_id}") if text else None)
        return found

    async def _state_and(self, key: str, field: str, job_id: str) -> tuple[str | None, str | None]:
        """Return a job's state, and then a text of it; None for a missing one.

        Not in a transaction: Redis refuses those when it is full, even if they only read.

        Args:
            key: Where the text is.
            field: The field of the record that has it, unless it is in the key.
            job_id: The job.
        """
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hmget(self._keys.job(job_id), ["state", field])
                pipe.get(key)
                (state, in_record), in_key = await pipe.execute()
        return state, in_record or in_key

    async def so_far(self, job_id: str) -> ResultSoFar:
        """Return the part of a job's result in its newest checkpoint; empty when it has none.

        Raises:
            NotUnderstood: Another release wrote it, in a form that this one does not know.
        """
        with redis_failures():
            stored = await self._redis.hget(self._keys.job(job_id), "so_far")
        return read(ResultSoFar, stored, "The job's checkpoint") if stored else ResultSoFar()

    async def ids(self, *, live_only: bool = False) -> list[str]:
        """Return the ids of all jobs, or of those that have not ended, oldest first."""
        found: list[tuple[str, int]] = []
        while True:
            before = found[-1][1] if found else None
            page = await self.newest(None, before, IDS_AT_ONCE, live_only=live_only)
            found += page
            if len(page) < IDS_AT_ONCE:
                return [job_id for job_id, _ in reversed(found)]

    async def newest(
        self, owner: str | None, before: int | None, count: int, *, live_only: bool = False
    ) -> list[tuple[str, int]]:
        """Return the ids of jobs with their positions in the order of submission, newest first.

        Args:
            owner: Only those of an owner, as `owner_key` returns it; None: all jobs.
            before: Only those before this position; None: from the newest on.
            count: At most so many.
            live_only: Only those that have not ended.
        """
        index = self._keys.index if owner is None else self._keys.owned(owner)
        if not live_only:
            return await self._page(index, before, count)
        with redis_failures():
            live = await self._redis.scard(self._keys.live)
        if live <= FEW_LIVE:
            return await self._few_live(index, before, count)
        found: list[tuple[str, int]] = []
        while len(found) < count:
            page = await self._page(index, before, IDS_AT_ONCE)
            if not page:
                break
            with redis_failures():
                is_live = await self._redis.smismember(self._keys.live, [one for one, _ in page])
            found += [pair for pair, lives in zip(page, is_live, strict=True) if lives]
            before = page[-1][1]
        return found[:count]

    async def count(self, *, live_only: bool) -> int:
        """Return the number of all jobs, or of those that have not ended."""
        with redis_failures():
            if live_only:
                return int(await self._redis.scard(self._keys.live))
            return int(await self._redis.zcard(self._keys.index))

    async def oldest_position(self, *, live_only: bool) -> int:
        """Return a position in the order of submission before which there is no job."""
        if live_only and await self.count(live_only=True) <= FEW_LIVE:
            live = await self._few_live(self._keys.index, None, FEW_LIVE)
            return min((position for _, position in live), default=0)
        with redis_failures():
            first: Any = await self._redis.zrange(self._keys.index, 0, 0, withscores=True)
        return int(first[0][1]) if first else 0

    async def position_of_newest(self, count: int) -> int:
        """Return the position of the oldest of the newest `count` jobs."""
        with redis_failures():
            found: Any = await self._redis.zrevrange(
                self._keys.index, count - 1, count - 1, withscores=True
            )
        return int(found[0][1]) if found else 0

    async def oldest(self, start: int, stop: int, count: int, *, live_only: bool) -> IndexStep:
        """Return the oldest jobs between two positions, `stop` not included.

        Args:
            start: The position of the first one.
            stop: The position behind the last one.
            count: At most so many are looked at.
            live_only: Only those of them that have not ended.
        """
        with redis_failures():
            found: Any = await self._redis.zrangebyscore(
                self._keys.index, start, f"({stop}", 0, count, withscores=True
            )
            jobs = [(job_id, int(score)) for job_id, score in found]
            following = jobs[-1][1] + 1 if len(jobs) == count else stop
            if live_only and jobs:
                is_live = await self._redis.smismember(
                    self._keys.live, [job_id for job_id, _ in jobs]
                )
                jobs = [pair for pair, lives in zip(jobs, is_live, strict=True) if lives]
        return IndexStep(jobs, following)

    async def newest_live(self, most: int) -> list[str]:
        """Return the ids of jobs that have not ended, newest first.

        Args:
            most: At most so many; where many jobs are live, fewer, if the newest ones have ended.
        """
        with redis_failures():
            live = await self._redis.scard(self._keys.live)
        if live <= FEW_LIVE:
            return [job_id for job_id, _ in await self._few_live(self._keys.index, None, most)]
        ids = [job_id for job_id, _ in await self._page(self._keys.index, None, IDS_AT_ONCE)]
        with redis_failures():
            is_live = await self._redis.smismember(self._keys.live, ids)
        return [job_id for job_id, lives in zip(ids, is_live, strict=True) if lives][:most]

    async def _page(self, index: str, before: int | None, count: int) -> list[tuple[str, int]]:
        below = "+inf" if before is None else f"({before}"
        with redis_failures():
            found: Any = await self._redis.zrevrangebyscore(
                index, below, "-inf", start=0, num=count, withscores=True
            )
        return [(job_id, int(score)) for job_id, score in found]

    async def _few_live(self, index: str, before: int | None, count: int) -> list[tuple[str, int]]:
        with redis_failures():
            ids: Any = list(await self._redis.smembers(self._keys.live))
            scores: Any = await self._redis.zmscore(index, ids) if ids else []
        scored = ((job_id, int(score)) for job_id, score in zip(ids, scores, strict=True) if score)
        found = [pair for pair in scored if before is None or pair[1] < before]
        return sorted(found, key=lambda pair: -pair[1])[:count]

    async def sketches(self, ids: Sequence[str]) -> list[JobSketch]:
        """Return those jobs that exist, in the order of their ids; faster than records."""
        if not ids:
            return []
        fields = ["state", "tenant", "owned", "agent", "root", "parent", "spec"]
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hmget(self._keys.job(job_id), fields)
                pipe.mget(map(self._keys.spec, ids))
                *answers, specs = await pipe.execute()
        found = zip(ids, answers, specs, strict=True)
        return [
            JobSketch(
                job_id,
                state,
                tenant,
                read_owner(owned),
                agent,
                root,
                parent,
                in_record or in_key or "",
            )
            for job_id, (state, tenant, owned, agent, root, parent, in_record), in_key in found
            if state
        ]

    async def owner_of(self, job_id: str) -> Ownership | None:
        """Return to whom a job belongs; None when it does not exist."""
        [found] = await self.owners_of([job_id])
        return found

    async def owners_of(self, job_ids: Sequence[str]) -> list[Ownership | None]:
        """Return to whom each job belongs; None for one that does not exist."""
        if not job_ids:
            return []
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.hmget(self._keys.job(job_id), ["tenant", "owned"])
                found = await pipe.execute()
        return [
            None if tenant is None else Ownership(tenant, read_owner(owned))
            for tenant, owned in found
        ]

    async def root(self, job_id: str) -> str:
        """Return the root id of a job's tree, or `job_id` if it is one.

        Raises:
            UnknownJob: Neither a job nor a tree has this id.
        """
        with redis_failures():
            if await self._redis.exists(self._keys.tree(job_id)):
                return job_id
            root: Any = await self._redis.hget(self._keys.job(job_id), "root")
        if root is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return str(root)

    async def tree_sizes(self, root_ids: Iterable[str]) -> list[int]:
        """Return the number of each tree's jobs."""
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for root_id in root_ids:
                    pipe.zcard(self._keys.tree(root_id))
                return await pipe.execute()

    async def list_tree(self, root_id: str, position: int, count: int) -> list[tuple[str, int]]:
        """Return the ids of a tree's jobs with their positions, oldest first.

        Args:
            root_id: The tree.
            position: That of the newest job that is known; 0: none is.
            count: At most so many.
        """
        with redis_failures():
            found: Any = await self._redis.zrangebyscore(
                self._keys.tree(root_id), f"({position}", "+inf", 0, count, withscores=True
            )
        return [(job_id, int(score)) for job_id, score in found]

    async def tree_steps(
        self, root_id: str, *, parent_id: str | None = None
    ) -> AsyncGenerator[list[str], None]:
        """Yield the ids of a tree's jobs, oldest first, in parts.

        Args:
            root_id: The tree.
            parent_id: Only those of jobs that this one has submitted; None: all.
        """
        position = 0
        while step := await self.list_tree(root_id, position, SKETCHED_AT_ONCE):
            position, ids = step[-1][1], [job_id for job_id, _ in step]
            if parent_id is not None:
                ids = [one.id for one in await self.sketches(ids) if one.parent_id == parent_id]
            if ids:
                yield ids

    async def usage(self, ids: Sequence[str]) -> list[Usage]:
        """Return the usage of each job with its descendants; under a root id, the whole tree's."""
        found = await self._hashes(map(self._keys.usage, ids))
        return [read_account(fields).usage for fields in found]

    async def budgets(self, ids: Sequence[str]) -> list[BudgetState]:
        """Return the budget of each job with its descendants; under a root id, the whole tree's."""
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hgetall(self._keys.usage(job_id))
                    pipe.hgetall(self._keys.reserved(job_id))
                found = await pipe.execute()
        return list(map(read_budget, found[::2], found[1::2]))

    async def accounts(self, ids: Sequence[str]) -> list[JobAccount]:
        """Return what those jobs that exist have used, each with all jobs below it.

        They need one round trip, and only the needed fields of each record are read.
        """
        if not ids:
            return []
        fields = ["root", "parent", "agent", "submitted_at", "spec"]
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hmget(self._keys.job(job_id), fields)
                    pipe.hgetall(self._keys.usage(job_id))
                pipe.mget(map(self._keys.spec, ids))
                *answers, specs = await pipe.execute()
        found = zip(ids, answers[::2], answers[1::2], specs, strict=True)
        return [
            JobAccount(
                job_id,
                root,
                parent or None,
                agent,
                seconds(submitted),
                labels=read_labels(in_record or in_key or ""),
                account=read_account(used),
            )
            for job_id, (root, parent, agent, submitted, in_record), used, in_key in found
            if root
        ]

    async def trees_begun_by(self, ids: Sequence[str]) -> list[str]:
        """Return the root ids of the trees whose oldest jobs are among these, in their order."""
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hget(self._keys.job(job_id), "root")
                found = await pipe.execute()
            roots = dict.fromkeys(filter(None, found))
            async with self._redis.pipeline(transaction=False) as pipe:
                for root_id in roots:
                    pipe.zrange(self._keys.tree(root_id), 0, 0)
                first = {job_id for one in await pipe.execute() for job_id in one}
        return [root for job_id, root in zip(ids, found, strict=True) if job_id in first]

    async def oldest_of_tree(self, root_id: str) -> tuple[str, int] | None:
        """Return the id of a tree's oldest job and its position; None of no tree."""
        oldest = await self.list_tree(root_id, 0, 1)
        return oldest[0] if oldest else None

    async def tree_states(self, root_id: str) -> Mapping[str, int]:
        """Return how many jobs of a tree are in which state; Redis counts them, in steps."""
        states = Counter[str]()
        position: str | int = 0
        while position != "":
            position, *counted = await self._counting.run(
                "tree_states", root_id, position, COUNTED_AT_ONCE
            )
            for state, number in zip(counted[::2], counted[1::2], strict=True):
                states[state] += int(number)
        return states

    async def states(self, ids: Sequence[str]) -> list[str | None]:
        """Return the state of each job; None for one that no longer exists."""
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hget(self._keys.job(job_id), "state")
                return await pipe.execute()

    async def state_counts(self, *, begin_again: bool = False) -> StateCounts:
        """Return how many jobs are in which state, from counters: no job is read for it.

        Each call recounts some jobs, because earlier releases do not count. The very first one
        recounts all, in steps.

        Args:
            begin_again: Recount all jobs now.
        """
        complete = 0
        while not complete:
            complete, total, *counted = await self._counting.run(
                "state_counts", COUNTED_AT_ONCE, int(begin_again)
            )
            begin_again = False
        states = {
            state: int(number) for state, number in zip(counted[::2], counted[1::2], strict=True)
        }
        return StateCounts(states, sum(states.values()) == total)

    async def approvals_count(self) -> int:
        """Return how many calls wait for a person."""
        with redis_failures():
            return int(await self._redis.zcard(self._keys.approvals))

    async def approvals(self) -> list[Approval]:
        """Return the calls that wait for a person, oldest first."""
        with redis_failures():
            ids: Any = await self._redis.zrange(self._keys.approvals, 0, -1)
        found: list[tuple[str, dict[str, str]]] = []
        for first in range(0, len(ids), APPROVALS_AT_ONCE):
            some = ids[first : first + APPROVALS_AT_ONCE]
            hashes = await self._hashes(map(self._keys.approval, some))
            found += zip(some, hashes, strict=True)
        return [
            stored_approval(approval_id, fields)
            for approval_id, fields in found
            if "request" in fields  # otherwise it was answered meanwhile
        ]

    async def knows_approval(self, approval_id: str) -> bool:
        """Return whether an approval with that id is open, or was answered recently."""
        with redis_failures():
            return bool(await self._redis.exists(self._keys.approval(approval_id)))

    async def job_of_approval(self, approval_id: str) -> str | None:
        """Return the id of the job that waits, or waited, for an approval; None: unknown."""
        with redis_failures():
            job_id: str | bytes | None = await self._redis.hget(
                self._keys.approval(approval_id), "job"
            )
        return None if job_id is None else str(job_id)

    async def workers(self) -> list[WorkerInfo]:
        """Return the living workers, sorted by name."""
        return [worker async for worker in self.registrations.read(WorkerInfo)]

    async def of_pool(self, pool: str) -> AsyncGenerator[list[str], None]:
        """Yield the ids of the jobs of a pool of workers that have not ended, in parts."""
        position, is_begun = 0, False
        while position or not is_begun:
            with redis_failures():
                found: Any = await self._redis.sscan(
                    self._keys.pool(pool), position, count=IDS_AT_ONCE
                )
            position, is_begun = int(found[0]), True
            yield list(map(str, found[1]))

    async def oldest_submission(self) -> float | None:
        """Return when the oldest stored job was submitted, in seconds since the epoch."""
        with redis_failures():
            first: Any = await self._redis.zrange(self._keys.index, 0, 0)
        records = await self.get_many(first)
        return records[0].submitted_at if records else None

    async def is_live(self, job_id: str) -> bool:
        """Return whether the job exists and has not ended."""
        with redis_failures():
            return bool(await self._redis.sismember(self._keys.live, job_id))

    async def awaits_collection(self, job_id: str) -> bool:
        """Return whether the job has ended, and its changes are not yet collected."""
        with redis_failures():
            return await self._redis.zscore(self._keys.uncollected, job_id) is not None

    async def uncollected(self) -> list[Uncollected]:
        """Return the ended jobs whose changes are not yet collected, oldest first."""
        with redis_failures():
            found: Any = await self._redis.zrange(self._keys.uncollected, 0, -1, withscores=True)
            if not found:
                return []
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id, _ in found:
                    pipe.hmget(self._keys.job(job_id), ["host", "worker"])
                places = await pipe.execute()
        now = await self.now_ms()
        return [
            Uncollected(job_id, host or "", worker or "", (now - ended) / 1000)
            for (job_id, ended), (host, worker) in zip(found, places, strict=True)
        ]

    async def memory(self) -> RedisMemory:
        """Return how much of its memory Redis uses, with the marks of the installation."""
        with redis_failures():
            info: Any = await self._redis.info("memory")
            policy = await self._redis.hget(self._keys.policy, "json")
        marks = AdmissionPolicy.read(str(policy)).storage if policy else None
        return redis_memory(info, marks)

    async def stored(self) -> dict[str, Stored]:
        """Return how many jobs are stored and how many bytes they take, by account.

        The accounts are `all`, and for the jobs of callers `tenant:` and the tenant, and `owner:`
        and the owner as `owner_key` names it.
        """
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._keys.stored_jobs)
                pipe.hgetall(self._keys.stored_bytes)
                jobs, sizes = await pipe.execute()
        return {name: Stored(int(jobs.get(name, 0)), int(size)) for name, size in sizes.items()}

    async def known_installation(self) -> str | None:
        """Return the id of the installation; None before its first worker, and after a loss."""
        with redis_failures():
            stored = await self._redis.get(self._keys.installation)
        return None if stored is None else str(stored)

    async def now_ms(self) -> int:
        """Return the time in milliseconds by the Redis server's clock, which all records use."""
        return await server_time_ms(self._redis)

    async def _hashes(self, keys: Iterable[str]) -> list[dict[str, str]]:
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hgetall(key)
                return await pipe.execute()
