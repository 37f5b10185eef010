"""The ledger: the job records in Redis, and the only authority on the state of a job.

Every change of state is one Lua script (`scripts/`). So it is atomic, uses the Redis server's
clock, and adds its `job.state` event to the journal in the same step. A claim's token is a fencing
token: only the attempt with the job's token can renew its lease, release or finish the job. No
token is given twice, also when Redis loses its last writes.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from uuid import uuid4

from pydantic import JsonValue
from redis.asyncio import Redis

from ...approvals import ApprovalAnswer
from ...valid_models import valid_json
from ...valid_text import clean, clean_text
from .. import versions
from ..approvals import (
    KEPT_SECONDS,
    Approval,
    answer_fingerprint,
    answer_json,
    awaited_tools,
    refusal,
)
from ..bounds import MAX_NOTE_BYTES, MAX_REASON_CHARACTERS, cut_text, fit
from ..failures import (
    InvalidJob,
    LedgerFull,
    LimitReached,
    MessagesUnread,
    ShareUsedUp,
    UnknownJob,
    out_of_time,
)
from ..graph import InvalidGraph, longest_paths, others, specs_in_order, unknown_job
from ..policy import AdmissionPolicy
from ..result import (
    CollectedChanges,
    CollectionState,
    JobResult,
    ResultSoFar,
)
from ..spec import JobSpec, TreeBounds
from ..state import JobState
from ..worker_info import WorkerAbility, WorkerInfo
from .answered_calls import AnsweredCalls
from .connection import identity
from .keys import Keys
from .lua_scripts import Scripts, milliseconds
from .memory import ADVICE
from .model_states import ClosedModel
from .records import NOTHING, Records, Stored
from .redis_errors import redis_failures
from .reservation_store import ReservationStore
from .script_summaries import ScriptSummaries
from .stored import (
    Submission,
    entry_of_child,
    owner_key,
    read_spec,
    shown_spec,
    submission,
    unique_key,
)

INSTALLATION_BYTES = 8
"""The random bytes of an id: enough that no two installations ever have the same one."""
TOKEN_DIGITS = 12
"""The random digits at the end of a claim's token: its beginning, a counter, repeats when Redis
loses its last writes."""
SUBMIT_BATCH = 50
"""The most jobs in one script call: each takes Redis 60 µs, and heartbeats must run between two
calls."""
ID_CHARACTERS = 30
"""What the id of a job takes in a list of them."""
SUBMIT_CHARACTERS = 500_000
"""The most characters of their specifications, unless it is a single one: Redis copies them, also
for its file."""
TRANSIT_SECONDS = 15.0
"""The time after which a message to a worker with a free slot counts as lost."""
HEAD_START_SECONDS = 2.0
"""The time for which a requeued job is reserved for the host that has its files: a few turns of the
queue, and short enough for a job to run again 4 s after its worker was stopped."""
REAP_BATCH = 30
"""The most jobs in one script call: requeuing one takes Redis a tenth of a millisecond, on a busy
machine twice as long, and heartbeats must run between two calls."""
FRUITLESS_CALLS = 8
"""The most calls of a dispatch that take no job and have not looked at all waiting jobs: the next
dispatch skips what they have set aside."""
NOT_UNDERSTOOD = ("wire version ", "agent ", "this worker cannot read")
"""The beginnings of refused claims when the worker cannot run the job."""
UNREADABLE = "this worker cannot read the job: another release submitted it"
MAX_HOST_FAULTS = 10
"""How often a job is given back because its host failed. An engine that fails under one job more
often may do so because of the job, whose attempts are used up from then on."""
MAX_REFUSALS = 2
"""How often a job is requeued because a host, fit for other sandboxes, could not open its sandbox.
With the first try there are three, which is the default number of attempts."""
CANCEL_BATCH = 20
"""The most jobs in one script call: ending one takes Redis up to a third of a millisecond, and
heartbeats must run between two calls."""
FOLLOW_BATCH = 20
"""The most jobs that one script call ends or queues because others have ended; see CANCEL_BATCH."""
CANCEL_HEARD_SECONDS = 0.7
"""The time that a worker has to confirm the cancellation of a job. One that is frozen or lost does
not; with the reaper's interval of a second, its job still ends within two."""
EVICT_LOOKS = 500
"""The most jobs that one script call checks for whether they are needed; a deleted one counts as
ten."""
EVICT_KNOWN = 100
"""The most trees that are passed to a call as kept: the jobs of a tree end one after another."""
SHORTEN_BATCH = 50
"""The most jobs in one script call: a journal of a megabyte takes Redis a tenth of a millisecond.
"""
RECOUNT_BATCH = 200
"""The most jobs in one script call; each takes Redis 5 µs."""
FORGET_BATCH = 30
"""The most jobs in one script call: deleting one takes Redis a tenth of a millisecond, on a busy
machine twice as long."""
MAX_MESSAGE_CHARACTERS = 20_000
"""The longest message to a job: longer texts belong in a file, or are a separate task."""
MAX_MESSAGES = 100
"""The most messages to one job over its lifetime: its agent's conversation contains them all."""
STARVED = f"Redis has no memory left, so the job could not continue: {ADVICE}."
"""The error of a job that was given back because Redis was full, and not resumed in time."""
FREE_SHARE = (
    "wait until some have ended and expired, cancel queued ones, or ask the operator for more"
)
UNREAD = 2
"""The answer of finish.lua when the job has received more messages."""
DIGEST_DIGITS = 16
"""The digits of a registration's digest: enough to tell all workers' registrations apart."""
OPENED = 2
"""The answer of register.lua when the worker has more free slots than before."""
SCRIPTS = (
    "submit", "cancel", "answer", "send",
    "dispatch", "upcoming", "reject", "reap", "forget", "evict", "shorten", "recount", "turn",
    "register", "claim", "lower", "beat", "finish", "release", "give_back", "fail_attempt",
    "discount",
    "park", "park_for_model", "start",
    "checkpoint", "collect", "activity", "follow",
)  # fmt: skip


@dataclass(frozen=True)
class Dispatched:
    """A job that is to be sent to a worker."""

    spec: JobSpec
    """The specification, as far as this release can read it: the worker that runs it reads it
    again."""
    number: int
    """The number of the job's dispatches so far: makes each message's id unique."""
    pool: str = ""
    """The pool of the workers that it is sent to; empty: any worker takes it."""
    worker: str = ""
    """The worker that the job is bound to."""
    queue: str = ""
    """That worker's own queue. Empty: it has none, and the job is sent to the queue of the pool."""


@dataclass(frozen=True)
class Claim:
    """The right of one attempt to run a job, valid while its lease is renewed."""

    spec: JobSpec
    token: int
    attempt: int
    ran_seconds: float
    """The running time of earlier attempts."""
    submitted_at: float
    started_at: float
    is_first: bool = False
    """No attempt has begun before: the journal has nothing to resume from."""


@dataclass(frozen=True)
class ModelWait:
    """What a job waits for that may ask none of its models."""

    closed: ClosedModel
    """The one that is tried first."""
    accesses: tuple[str, ...]
    """Those of all its models that are closed."""
    most_seconds: float
    """How long it may wait in all."""
    most_of_agent: float
    """The same for jobs of its agent that set no limit of their own."""
    was_answered: bool
    """Whether a model has answered it since it waited last."""


@dataclass(frozen=True)
class Reaped:
    """What a reaper did."""

    states: dict[str, str] = field(default_factory=dict)
    """Job id -> new state."""
    lost: dict[str, float] = field(default_factory=dict)
    """Job id -> when its attempt ended, in seconds since the epoch by the Redis server's clock: for
    jobs whose worker was lost. The others were parked or queued."""


class Ledger(Records):
    """The job records of one installation, and all operations that change them.

    Every method raises LedgerUnavailable when Redis does not respond. The operation may have taken
    effect nevertheless.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        super().__init__(redis, keys)
        self._scripts = Scripts(redis, keys, SCRIPTS)
        self._run = self._scripts.run
        self.reservations = ReservationStore(redis, keys)
        self.answered_calls = AnsweredCalls(redis, keys)
        self.script_summaries = ScriptSummaries(redis, keys)
        self._registered: dict[str, str] = {}
        """Worker -> the digest of its registration, as this process has last sent it."""

    # For clients

    async def submit(self, specs: Sequence[JobSpec], pool: str = "") -> list[str]:
        """Store and queue jobs, and return their ids.

        A known id or idempotency key is the same job: it is not stored again.

        Args:
            specs: The jobs.
            pool: The pool of the workers that are to run them and their children; empty: all
                workers. While no worker of the pool can, the workers that started last do.

        Raises:
            InvalidJob: A job cannot be stored, or is to run after one that does not exist, or after
                itself; none is.
            LedgerFull: Redis has little memory left; some jobs may be stored.
            ShareUsedUp: An owner or a tenant has no room for them; none is stored, unless others
                of its jobs are stored meanwhile.
            LedgerUnavailable: Redis does not respond; some jobs may be stored.
        """
        await self._check_predecessors(specs)
        specs, position = specs_in_order(specs)
        paths = longest_paths(specs)
        jobs = [submission(spec)._replace(pool=pool, path=paths[spec.id]) for spec in specs]
        ids = await self._store(specs, list(_calls(jobs)))
        if any(spec.after for spec in specs):
            await self._follow_rest()
        return [ids[at] for at in position]

    async def _store(
        self, specs: Sequence[JobSpec], calls: Sequence[Sequence[Submission]]
    ) -> list[str]:
        """Store the jobs of a submission, those before others first, and return their ids."""
        later = await self._new_by_owner(specs, len(calls[0])) if len(calls) > 1 else {}
        ids: list[str] = []
        known_as: dict[str, str] = {}
        for planned in calls:
            group, new = (ids[0], {}) if ids else ("", later)
            call = [_with_known_ids(one, known_as) for one in planned]
            arguments = chain(*(one.arguments() for one in call))
            answer = await self._run("submit", group, json.dumps(new), *arguments)
            if isinstance(answer, list):
                why, account = answer
                if account:
                    raise ShareUsedUp(f"{why}: {FREE_SHARE}.")
                raise LedgerFull(f"{why}: try again later, or {ADVICE}.")
            stored = answer.split()
            known_as |= {one.id: job_id for one, job_id in zip(call, stored, strict=True)}
            ids += stored
        return ids

    async def _check_predecessors(self, specs: Sequence[JobSpec]) -> None:
        """Refuse new jobs after jobs that do not exist."""
        before = list(others(specs))
        states = await self.states(before) if before else []
        unknown = {job_id for job_id, state in zip(before, states, strict=True) if state is None}
        if not unknown:
            return
        stored = await self.states(await self.known_as(specs))
        for position, (spec, state) in enumerate(zip(specs, stored, strict=True)):
            if state is None and not unknown.isdisjoint(spec.after):  # not a repeated submission
                missing = next(one for one in spec.after if one in unknown)
                raise InvalidGraph([unknown_job(missing, position)], len(specs))

    async def _follow_rest(self) -> None:
        """Queue or end the jobs that came after others, as far as these have ended."""
        while await self._run("follow", FOLLOW_BATCH):
            pass

    async def _new_by_owner(self, specs: Sequence[JobSpec], first: int) -> Counter[str]:
        """Return how many jobs are not stored yet, by the index of their owner.

        Args:
            specs: The jobs; those with an idempotency key in common are one.
            first: How many at the beginning do not count.
        """
        ids = await self.known_as(specs)
        states = await self.states(ids)
        names = [unique_key(spec) or spec.id for spec in specs]
        new = {
            name: owner_key(spec.tenant, spec.owner)
            for name, spec, state in zip(names, specs, states, strict=True)
            if state is None
        }
        for name in names[:first]:
            new.pop(name, None)
        return Counter(new.values())

    async def cancel(self, job_id: str) -> JobState:
        """Cancel a job and its descendants, and return the job's state before.

        Queued and waiting jobs end at once, running ones when their worker confirms.

        Raises:
            UnknownJob: The job does not exist.
        """
        before, left = await self._cancel_some(job_id)
        if before is None:
            raise UnknownJob(f"There is no job {job_id}.")
        if left:
            await self._cancel_rest()
        await self._follow_rest()
        return JobState(before)

    async def _cancel_rest(self) -> None:
        """Cancel the jobs that a cancellation, or the end of a parent, has listed."""
        while (await self._cancel_some(""))[1]:
            pass

    async def _cancel_some(self, job_id: str) -> tuple[str | None, int]:
        """Cancel a batch; return the job's state before, and the number of jobs still listed."""
        before, left = await self._run(
            "cancel", job_id, CANCEL_BATCH, milliseconds(CANCEL_HEARD_SECONDS)
        )
        return before, int(left)

    async def answer(self, approval_id: str, answer: ApprovalAnswer) -> str:
        """Answer an approval, and return the id of its job.

        The job is requeued when it waits for nothing else. Who answers is recorded as Redis, or the
        owner of its Unix socket, knows the caller (`identity`), whatever the answer says.

        Raises:
            ApprovalRefused: The answer was rejected; the text says why.
        """
        by = await identity(self._redis)
        named = answer.model_copy(update={"by": by})
        data = {"id": approval_id, **json.loads(answer_json(named))}
        proof = (by, answer_fingerprint(data), KEPT_SECONDS)
        reply = await self._run(
            "answer", approval_id, answer.decision, json.dumps(data), uuid4().hex, *proof
        )
        if reply[0] == "taken":
            return str(reply[1])
        raise refusal(approval_id, answer.decision, reply, by)

    async def send(self, job_id: str, text: str) -> None:
        """Store a message for a job's agent, which reads it before its next model call.

        Raises:
            UnknownJob: The job does not exist.
            InvalidJob: The job has ended or received too many messages, or the message is empty
                or too long.
        """
        if not text.strip() or len(text) > MAX_MESSAGE_CHARACTERS:
            raise InvalidJob(f"A message has 1 to {MAX_MESSAGE_CHARACTERS} characters.")
        text = clean_text(text)
        state = await self._run(
            "send", job_id, text, json.dumps({"text": text}), uuid4().hex, MAX_MESSAGES
        )
        if state is None:
            raise UnknownJob(f"There is no job {job_id}.")
        if state == "full":
            raise InvalidJob(f"Job {job_id} has had {MAX_MESSAGES} messages: it takes no more.")
        if JobState(state).is_terminal:
            raise InvalidJob(f"Job {job_id} has ended ({state}): it takes no messages.")

    # For admission, the reaper and retention

    async def dispatch(self, most: int) -> list[Dispatched]:
        """Take queued jobs that can run now, in their order; the caller sends them at once.

        A job whose specification is no specification of any release fails here. One that this
        release cannot read is sent: its worker may be of another.

        Args:
            most: The maximum number of jobs.
        """
        jobs: list[Dispatched] = []
        fruitless = 0
        while len(jobs) < most and fruitless < FRUITLESS_CALLS:
            taken, is_more = await self._dispatch_some(most - len(jobs))
            jobs += [job for job in taken if job is not None]
            if not is_more:
                break
            fruitless = 0 if taken else fruitless + 1
        return jobs

    async def _dispatch_some(self, most: int) -> tuple[list[Dispatched | None], bool]:
        """Take the jobs of one call, and return whether there are more; None: it failed."""
        request = uuid4().hex  # the client repeats the call when an answer is lost
        wires, fallback = (versions.WIRE_OLDEST, versions.WIRE_NEWEST), AdmissionPolicy().stored()
        taken, is_more = await self._run(
            "dispatch", most, milliseconds(TRANSIT_SECONDS), request, *wires, fallback
        )
        return [await self._dispatched(*job) for job in taken], bool(is_more)

    async def _dispatched(
        self, job_id: str, number: int, stored: str | None, *sent_to: str
    ) -> Dispatched | None:
        try:
            return Dispatched(shown_spec(job_id, stored), int(number), *sent_to)
        except InvalidJob as error:
            why = cut_text(str(error), MAX_REASON_CHARACTERS)
            await self._run("reject", job_id, number, why)
            return None

    async def upcoming(self, most: int) -> list[JobSpec]:
        """Return queued jobs that will probably be dispatched next; they stay in their lanes.

        Args:
            most: The maximum number of jobs.
        """
        jobs = []
        for stored in await self._run("upcoming", most):
            with suppress(InvalidJob):  # its dispatch will say so
                jobs.append(read_spec(stored))
        return jobs

    async def reap(self, round_seconds: float = 0) -> Reaped | None:
        """Requeue jobs whose lease lapsed, end jobs whose deadline passed, remove lost workers.

        Args:
            round_seconds: The interval in which one process of those that pass an interval, and
                read the same wire versions, does this; 0: it is done at once.

        Returns:
            The jobs; None when another process has done it.
        """
        reaped, wires = Reaped(), (versions.WIRE_OLDEST, versions.WIRE_NEWEST)
        answer = await self._run("reap", REAP_BATCH, milliseconds(round_seconds), STARVED, *wires)
        if answer is None:
            return None
        while answer:
            some, is_more = answer
            for job_id, state, *lost_at in some:
                reaped.states[job_id] = state
                if lost_at:
                    reaped.lost[job_id] = lost_at[0] / 1000
            answer = await self._run("reap", REAP_BATCH, 0, STARVED, *wires) if is_more else None
        await self._cancel_rest()
        await self._follow_rest()
        return reaped

    async def forget(
        self, older_than_seconds: float, of_tenants: Mapping[str, float] | None = None
    ) -> int:
        """Delete jobs that ended that long ago, with their journals; return their number.

        Args:
            older_than_seconds: The time.
            of_tenants: The time for the jobs of single tenants.
        """
        kept_for = milliseconds(older_than_seconds)
        others = json.dumps({name: milliseconds(one) for name, one in (of_tenants or {}).items()})
        count, skipped, is_over = 0, 0, 0
        while not is_over:
            deleted, kept, is_over = await self._run(
                "forget", kept_for, others, skipped, FORGET_BATCH
            )
            count, skipped = count + deleted, skipped + kept
        return count

    async def evict(self, account: str, *, jobs: int, bytes_: int, min_kept_seconds: float) -> int:
        """Delete whole trees of an account before their time; return the number of deleted jobs.

        Those whose jobs ended first go first. A tree is kept if one of its jobs has not ended,
        ended a short time ago, or has changes that are not yet collected.

        Args:
            account: Whose jobs; see `stored`.
            jobs: How many are to be deleted, as far as possible.
            bytes_: How many bytes of them.
            min_kept_seconds: How long ago the last job of a tree has ended.
        """
        before = await self.now_ms() - milliseconds(min_kept_seconds)
        count, freed, skipped, is_over = 0, 0, 0, 0
        stopped_at: tuple[str, int] = ("", 0)
        kept_trees: deque[str] = deque(maxlen=EVICT_KNOWN)
        while not is_over:
            left = max(bytes_ - freed, 0), max(jobs - count, 0)
            place = (before, skipped, EVICT_LOOKS, *stopped_at)
            more, deleted, kept, is_over, root, checked, found = await self._run(
                "evict", account, *left, *place, *kept_trees
            )
            count, freed, skipped = count + deleted, freed + more, skipped + kept
            stopped_at = root, checked
            kept_trees.extend(found)
        return count

    async def shorten_journals(self, older_than_seconds: float) -> tuple[int, bool]:
        """Shorten some journals of the jobs that ended first to their ends.

        Args:
            older_than_seconds: How long ago a job has ended.

        Returns:
            Their number, and whether no other can be shortened.
        """
        before = await self.now_ms() - milliseconds(older_than_seconds)
        shortened, is_over = await self._run("shorten", before, SHORTEN_BATCH)
        return int(shortened), bool(is_over)

    async def recount(self) -> None:
        """Correct how many jobs are stored, and how many bytes: earlier releases do not count.

        What is stored or deleted meanwhile may be counted wrongly until the next time.
        """
        before, last = await self.stored(), "-inf"
        found: dict[str, Stored] = {}
        while last:
            last, *counts = await self._run("recount", last, RECOUNT_BATCH)
            for account, jobs, bytes_ in zip(*[iter(counts)] * 3, strict=True):
                known = found.get(account, NOTHING)
                found[account] = Stored(known.jobs + int(jobs), known.bytes + int(bytes_))
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for account in before.keys() | found.keys():
                    was, now = before.get(account, NOTHING), found.get(account, NOTHING)
                    if now == NOTHING:
                        pipe.hdel(self._keys.stored_jobs, account)
                        pipe.hdel(self._keys.stored_bytes, account)
                    elif now != was:
                        pipe.hincrby(self._keys.stored_jobs, account, now.jobs - was.jobs)
                        pipe.hincrby(self._keys.stored_bytes, account, now.bytes - was.bytes)
                await pipe.execute()

    async def takes_turn(self, name: str, seconds: float) -> bool:
        """Return whether this process does something that one process per interval does.

        Args:
            name: What is done.
            seconds: The interval in which no other process does it.
        """
        return bool(await self._run("turn", name, max(milliseconds(seconds), 1)))

    # For workers

    async def installation(self) -> str:
        """Return the id of the installation, which is made when it is first asked for.

        It belongs to the data of Redis: what is made elsewhere for the jobs of this ledger carries
        it, and a second ledger never has the same one, unless it is a copy of this one's data.
        """
        if known := await self.known_installation():
            return known  # also while Redis is full
        with redis_failures():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.set(self._keys.installation, secrets.token_hex(INSTALLATION_BYTES), nx=True)
                pipe.get(self._keys.installation)
                _, stored = await pipe.execute()
        return str(stored)

    async def register(
        self,
        worker: WorkerInfo,
        hold_seconds: float,
        policy: AdmissionPolicy | None = None,
        started_at: int = 0,
    ) -> bool:
        """Register a worker, or renew its registration.

        Args:
            worker: The worker.
            hold_seconds: How long the registration is valid; 0 removes it.
            policy: Its admission policy; the ledger keeps that of the worker that started last.
            started_at: The time of the worker's start, by `now_ms`.

        Returns:
            Whether the worker has more free slots than before: jobs may wait for them.
        """
        stored = policy.stored() if policy else ""
        changing, lasting = worker.changing_fields(), worker.lasting_fields()
        digest, of_agents = _digest([lasting, stored, started_at]), _digest(sorted(worker.agents))
        call = (
            *(worker.name, milliseconds(hold_seconds), stored, started_at),
            *(int(worker.draining), digest, of_agents, 2 * len(changing)),
            *chain(*changing.items()),
        )
        answer = 0
        if self._registered.get(worker.name) == digest:
            answer = await self._run("register", *call)
        if not answer:  # the first time, or Redis has lost it
            answer = await self._run("register", *call, *chain(*lasting.items()))
        self._registered[worker.name] = digest
        return bool(answer == OPENED)

    async def claim(
        self,
        job_id: str,
        worker: WorkerInfo,
        lease_seconds: float,
        dispatch: str = "",
        request: str = "",
    ) -> Claim | str:
        """Claim a job. Returns a Claim, or the reason for the refusal.

        A duplicate or late message claims nothing.

        Args:
            job_id: The job.
            worker: Who claims it.
            lease_seconds: The length of the lease.
            dispatch: The number of the dispatch that the message is of; empty: not checked.
            request: A name of this claim: repeated under the same name, because its answer was
                lost, it returns the same claim. Empty: a new one.
        """
        request = request or uuid4().hex  # the client repeats the call when an answer is lost
        answer = await self._run(
            "claim",
            job_id,
            worker.name,
            worker.host,
            worker.host_limit,
            milliseconds(lease_seconds),
            request,
            milliseconds(HEAD_START_SECONDS),
            worker.wire_oldest,
            worker.wire_newest,
            " ".join(worker.agents),
            dispatch,
            f"{secrets.randbelow(10**TOKEN_DIGITS):0{TOKEN_DIGITS}}",
        )
        if answer[0] == "refused":
            return str(answer[1])
        _, token, attempt, spec, ran, submitted, started, is_first, wire = answer
        try:
            validated = read_spec(spec)
        except InvalidJob:  # another release submitted it, without raising its version
            await self.release(job_id, int(token), UNREADABLE, unread_by=worker.name)
            return UNREADABLE
        needed = versions.find_version(json.loads(spec))
        if needed < int(wire):
            await self._run("lower", job_id, token, needed)
        return Claim(
            spec=validated,
            token=int(token),
            attempt=int(attempt),
            ran_seconds=float(ran) / 1000,
            submitted_at=float(submitted) / 1000,
            started_at=float(started) / 1000,
            is_first=bool(is_first),
        )

    async def beat(self, held: Mapping[str, int], lease_seconds: float) -> dict[str, str]:
        """Renew the leases of a worker's jobs.

        Args:
            held: Job id -> token of its claim.
            lease_seconds: The length of the leases from now.

        Returns:
            Job id -> `held`, `cancel` (held, and its cancellation was requested) or `lost`.
        """
        flat = [value for pair in held.items() for value in pair]
        answers = await self._run("beat", milliseconds(lease_seconds), *flat)
        return dict(zip(held, answers, strict=True))

    async def note_activities(self, activities: Mapping[str, tuple[int, str]]) -> None:
        """Note what running jobs do at this moment (`Activity`), for observers.

        Args:
            activities: Job id -> token of its claim, and the activity as JSON; empty: none.
        """
        flat = [value for job_id, noted in activities.items() for value in (job_id, *noted)]
        await self._run("activity", *flat)

    async def cancellations(self) -> AsyncIterator[str | None]:
        """Yield the id of each running job whose cancellation is requested, and None at first.

        None says that the listening begins: what was requested before is not yielded.

        Raises:
            RedisError: The connection is lost.
        """
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._keys.cancellations)
            yield None
            while True:
                message = await channel.get_message(timeout=1.0)
                if message is not None:
                    yield message["data"]

    async def finish(
        self,
        job_id: str,
        token: int,
        result: JobResult,
        data: Mapping[str, JsonValue],
        messages: int | None = None,
    ) -> bool:
        """Commit an attempt's result; False when the attempt no longer holds the job.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            result: The result; its state is the job's.
            data: Further data of the journal's last event.
            messages: The number of messages to the job that the result accounts for; None: not
                checked.

        Raises:
            MessagesUnread: The job has received more messages; nothing is committed.
        """
        known = -1 if messages is None else messages
        result_json = valid_json(result.bounded(), exclude_defaults=True)
        stored = (
            str(result.state),
            result_json,
            json.dumps(fit(clean(dict(data)), MAX_NOTE_BYTES)),
        )
        pending = int(result.collection is CollectionState.PENDING)
        outcome = await self._run("finish", job_id, token, *stored, known, pending)
        if outcome == UNREAD:
            raise MessagesUnread(f"More than {messages} messages were sent to job {job_id}.")
        return bool(outcome)

    async def release(
        self,
        job_id: str,
        token: int,
        reason: str,
        *,
        unread_by: str = "",
        starves_seconds: float = 0,
    ) -> bool:
        """Requeue a running job without using up an attempt.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            reason: Why it is released, for the journal.
            unread_by: The worker, when it cannot read the job, which is then reserved for others.
            starves_seconds: When Redis has no memory left: the time after which the job ends if no
                worker has resumed it.

        Returns:
            False when the attempt no longer holds the job.
        """
        why = cut_text(reason, MAX_REASON_CHARACTERS)
        starves = milliseconds(starves_seconds)
        return bool(await self._run("release", job_id, token, why, unread_by, starves))

    async def give_back(self, job_id: str, token: int, reason: str, *, has_run: bool) -> bool:
        """Requeue a running job whose host failed, without using up an attempt.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            reason: What is wrong with the host, for the journal.
            has_run: Whether the attempt's time counts.

        Returns:
            False when that has happened too often (MAX_HOST_FAULTS), or the attempt no longer holds
            the job.
        """
        why = cut_text(reason, MAX_REASON_CHARACTERS)
        bounds = ("host_faults", MAX_HOST_FAULTS)
        return bool(await self._run("give_back", job_id, token, why, *bounds, int(has_run)))

    async def refuse(
        self, claim: Claim, worker: WorkerInfo, reason: str, *, is_final: bool
    ) -> bool:
        """Requeue a job whose sandbox a fit host could not open; no attempt is used up.

        Hosts that have not tried are next. When all have tried, the same ones are, unless their
        refusal is final.

        Args:
            claim: The attempt.
            worker: The worker that made it.
            reason: Why the sandbox could not be opened.
            is_final: Whether the same host would refuse it again.

        Returns:
            False when enough hosts have tried, or have tried often enough (MAX_REFUSALS), or the
            attempt no longer holds the job.
        """
        same, others = [], []
        async for one in self.registrations.read(WorkerAbility):
            if one.host == worker.host:
                same.append(one.name)
            elif one.knows(claim.spec.agent) and (one.unfit or not one.draining):
                others.append(one.name)
        most = MAX_REFUSALS + len(others) if is_final else MAX_REFUSALS
        why = cut_text(f"its host cannot run it: {reason}", MAX_REASON_CHARACTERS)
        names = " ".join(same), " ".join(others)
        answer = await self._run(
            "give_back",
            claim.spec.id,
            claim.token,
            why,
            "refusals",
            most,
            0,
            *names,
            int(is_final),
        )
        return bool(answer)

    async def discount(self, job_id: str, token: int, seconds: float) -> bool:
        """Take a time from what a job has run; False: the attempt no longer holds it.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            seconds: How long the set-up of its environment took.
        """
        return bool(await self._run("discount", job_id, token, milliseconds(seconds)))

    async def fail_attempt(self, job_id: str, token: int, reason: str) -> bool:
        """Requeue the job for its next attempt; this one is used up.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            reason: Why it failed, for the journal.

        Returns:
            False when no attempt is left, or the attempt no longer holds the job.
        """
        return bool(await self._run("fail_attempt", job_id, token, reason))

    async def park(
        self,
        job_id: str,
        token: int,
        approvals: Sequence[Approval],
        children: Sequence[JobSpec] = (),
        bounds: TreeBounds = TreeBounds(),  # noqa: B008 - it is frozen
        *,
        started: Sequence[str] = (),
        wake_at: float | None = None,
        wake_any: float | None = None,
        timeout_seconds: float | None = None,
    ) -> JobState | None:
        """Let a job wait for people and for children, without a slot or a used-up attempt.

        New children are submitted in the same step, except those beyond `bounds`. The parent's
        journal records which children were refused, and which have ended.

        While the job waits for nothing but children, its time runs; at its deadline it ends, and
        its children are cancelled. While it waits for a person too, its time does not run.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            approvals: The approvals that it waits for.
            children: The specifications of the children that it waits for.
            bounds: The limits of its tree.
            started: The ids of children submitted before (`start`) that it waits for too.
            wake_at: When it resumes although not all children have ended, in seconds since the
                epoch by the clock of Redis; None: never.
            wake_any: In how many seconds at the latest it resumes when anything of what it waits
                for has arrived; None: it resumes when all has.
            timeout_seconds: The limit of its time over all attempts; None: no limit.

        Returns:
            The job's new state: `waiting`; `queued` when it has nothing to wait for; `cancelled`
            when its cancellation was requested before; None when the attempt no longer holds it.

        Raises:
            InvalidJob: A child cannot be stored; nothing has changed.
        """
        requests = chain(*((approval.id, valid_json(approval)) for approval in approvals))
        submissions = chain(*map(_child, children))
        awaited = awaited_tools([approval.tool for approval in approvals])
        time: tuple[int | str, str] = "", ""
        if timeout_seconds is not None:
            time = milliseconds(timeout_seconds), str(out_of_time(timeout_seconds))
        wake: int | str = "" if wake_at is None else milliseconds(wake_at)
        any_in: int | str = "" if wake_any is None else milliseconds(wake_any)
        limits = (bounds.max_children, bounds.max_tree_children, *time, wake, any_in)
        counts = (len(approvals), len(started))
        waits = (*requests, *started, *submissions)
        state = await self._run(
            "park", job_id, token, KEPT_SECONDS, awaited, *limits, *counts, *waits
        )
        return None if state is None else JobState(state)

    async def park_for_model(self, claim: Claim, wait: ModelWait, pool: str) -> JobState | None:
        """Let a job wait until a model may be asked again, without a slot or a used-up attempt.

        Its time does not run.

        Args:
            claim: The attempt.
            wait: What it waits for.
            pool: The pool of its worker.

        Returns:
            The job's new state: `waiting`; `queued` when the model may be asked again; `cancelled`
            when its cancellation was requested before; `failed` when it has waited for as long as
            it may, which is left to the caller to record; None when the attempt no longer holds it.
        """
        why = cut_text(wait.closed.sentence, MAX_REASON_CHARACTERS)
        entry = {
            "model": wait.closed.name,
            "state": str(wait.closed.state),
            "why": wait.closed.why,
            "until": wait.closed.until,
        }
        state = await self._run(
            "park_for_model",
            claim.spec.id,
            claim.token,
            " ".join(wait.accesses),
            milliseconds(wait.most_seconds),
            milliseconds(wait.most_of_agent),
            why,
            json.dumps(clean(entry)),
            f"{claim.spec.agent} {claim.spec.model or ''}",
            pool,
            int(wait.was_answered),
        )
        if state == "over":
            return JobState.FAILED
        return None if state is None else JobState(state)

    async def start(self, job_id: str, token: int, child: JobSpec, bounds: TreeBounds) -> bool:
        """Submit a child of a running job, which continues; one that exists is the same child.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            child: The child's specification.
            bounds: The limits of its tree.

        Returns:
            False when the attempt no longer holds the job.

        Raises:
            LimitReached: The job or its tree has all the children that it may have.
            InvalidJob: The child cannot be stored.
        """
        limits = (bounds.max_children, bounds.max_tree_children)
        answer = await self._run("start", job_id, token, *limits, *_child(child))
        if isinstance(answer, list):
            raise LimitReached(f"The task was not begun: {answer[1]}.")
        return answer is not None

    async def checkpoint(
        self, job_id: str, token: int, so_far: ResultSoFar, entry: Mapping[str, JsonValue] | None
    ) -> bool:
        """Store what is reported of a job if it ends without its worker.

        Args:
            job_id: The job.
            token: The token of the attempt's claim.
            so_far: The known part of its result.
            entry: The checkpoint's entry for the journal; None when another host cannot resume
                from it.

        Returns:
            False when the attempt no longer holds the job.
        """
        stored = valid_json(so_far, exclude_defaults=True)
        event = "" if entry is None else json.dumps(entry)
        return bool(await self._run("checkpoint", job_id, token, stored, event))

    async def attach_changes(self, job_id: str, collected: CollectedChanges) -> bool:
        """Complete the result of an ended job with its changes; False when that is done already.

        Args:
            job_id: The job.
            collected: Its changes.
        """
        event = {"files": len(collected.files_modified) + collected.files_omitted}
        changes = collected.model_dump(mode="json", exclude_defaults=True)
        parts = dict.fromkeys(CollectedChanges.model_fields) | changes
        return await self._complete(job_id, {**parts, "collection": None}, event)

    async def give_up_changes(self, job_id: str, reason: str) -> bool:
        """Record that the changes of an ended job are lost; False when they are collected.

        Args:
            job_id: The job.
            reason: Why, for the journal.
        """
        event = {"lost": cut_text(reason, MAX_REASON_CHARACTERS)}
        return await self._complete(job_id, {"collection": CollectionState.LOST}, event)

    async def _complete(
        self, job_id: str, parts: Mapping[str, JsonValue], event: Mapping[str, JsonValue]
    ) -> bool:
        """Replace parts of a pending result; None is the default, which is not stored.

        Fields of a newer release are kept.
        """
        _, before = await self._state_and(self._keys.result(job_id), "result", job_id)
        if before is None:
            return False
        merged = {**json.loads(before), **parts}
        after = json.dumps({name: part for name, part in merged.items() if part is not None})
        return bool(await self._run("collect", job_id, before, after, json.dumps(event)))


def _calls(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
    """Yield the jobs of a submission as one script call each takes them."""
    call: list[Submission] = []
    size = 0
    for one in submissions:
        characters = len(one.spec) + ID_CHARACTERS * len(one.after)
        if len(call) == SUBMIT_BATCH or (call and size + characters > SUBMIT_CHARACTERS):
            yield call
            call, size = [], 0
        call.append(one)
        size += characters
    if call:
        yield call


def _with_known_ids(one: Submission, known_as: Mapping[str, str]) -> Submission:
    """Return a job that comes after the stored ones of others that had an idempotency key."""
    return one._replace(after=tuple(known_as.get(job_id, job_id) for job_id in one.after))


def _digest(values: object) -> str:
    return sha256(json.dumps(values).encode()).hexdigest()[:DIGEST_DIGITS]


def _child(spec: JobSpec) -> tuple[str, str, str]:
    """Return the arguments for a script that stores a child."""
    return (*submission(spec).arguments(), entry_of_child(spec))
