"""The ledger: the job records in Redis, and the only authority on what state a job is in.

Every change of state is one Lua script (`scripts/`), so it happens whole or not at all, by the
Redis server's clock, and writes its `job.state` event to the journal in the same step. A claim's
token is the fence: only the attempt that holds the newest token can renew, release or finish.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any
from uuid import uuid4

from pydantic import JsonValue, ValidationError
from redis.asyncio import Redis

from orchestrator.approvals import ApprovalAnswer
from orchestrator.jobs import versions
from orchestrator.jobs.approvals import (
    KEPT_SECONDS,
    Approval,
    refusal,
    serialized,
    waiting_words,
)
from orchestrator.jobs.failures import (
    InvalidJob,
    MessagesUnread,
    UnknownJob,
    out_of_time,
)
from orchestrator.jobs.policy import AdmissionPolicy
from orchestrator.jobs.result import JobResult, ResultSoFar
from orchestrator.jobs.spec import JobSpec, TreeBounds
from orchestrator.jobs.state import JobState
from orchestrator.jobs.store.keys import Keys
from orchestrator.jobs.store.records import Records
from orchestrator.jobs.store.redis_errors import redis_failures
from orchestrator.jobs.store.stored import entry_of_child, spec_of, submission
from orchestrator.jobs.worker_info import WorkerInfo

SUBMIT_BATCH = 100
"""Jobs in one script call: longer ones would hold up everybody's heartbeats."""
TRANSIT_SECONDS = 15.0
"""How long a dispatched message may take to a worker that has room before it counts as lost."""
HEAD_START_SECONDS = 2.0
"""How long a job that was begun is kept for the host that has its files, after it was queued again:
a few turns of the queue, and short enough for a job to be at work again 4 s after its worker was
stopped."""
REAP_BATCH = 200
NOT_UNDERSTOOD = ("wire version ", "agent ")
"""How claim.lua begins the refusal of a job of which the worker does not know all."""
CANCEL_BATCH = 50
"""Jobs in one script call: ending one takes Redis half a millisecond, and heartbeats come between
two."""
CANCEL_HEARD_SECONDS = 0.7
"""How long a worker has to hear that a job of its is cancelled. One that is frozen or lost hears
nothing; with the second between two looks of the reaper, its job still ends within two."""
FORGET_BATCH = 100
"""Jobs in one script call; a long journal takes Redis a millisecond to remove."""
MAX_MESSAGE_CHARACTERS = 20_000
"""Of a message to a job: more belongs in a file, or is a task of its own."""
MAX_MESSAGES = 100
"""To one job in its life: they all stand in its agent's conversation."""
UNREAD = 2
"""What finish.lua says when more messages came."""
SCRIPTS = (
    "submit", "dispatch", "reject", "reap", "cancel",
    "register", "claim", "beat", "finish", "release", "fail_attempt", "park", "answer", "forget", "send",
    "checkpoint",
)  # fmt: skip


@dataclass(frozen=True)
class Dispatched:
    """A job that may be sent to a worker now."""

    spec: JobSpec
    number: int
    """Counts the job's dispatches: makes each message's id its own."""


@dataclass(frozen=True)
class Claim:
    """The right of one attempt to run a job, as long as its lease is renewed."""

    spec: JobSpec
    token: int
    attempt: int
    ran_seconds: float
    """What earlier attempts ran."""
    submitted_at: float
    started_at: float


class Ledger(Records):
    """The job records of one installation, and all that changes them."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        super().__init__(redis, keys)
        self._scripts: dict[str, Any] = {
            name: redis.register_script(script_source(name)) for name in SCRIPTS
        }

    # What a parent does

    async def submit(self, specs: Sequence[JobSpec]) -> list[str]:
        """Store jobs; the ids under which they stand.

        A known id or idempotency key is the same job.

        Raises:
            InvalidJob: one cannot be stored; nothing is.
            LedgerUnavailable: some may be stored all the same; submitting all of them again is
                safe.
        """
        submissions = [submission(spec) for spec in specs]
        ids: list[str] = []
        for first in range(0, len(submissions), SUBMIT_BATCH):
            batch = submissions[first : first + SUBMIT_BATCH]
            ids += await self._run("submit", *(value for values in batch for value in values))
        return ids

    async def cancel(self, job_id: str) -> JobState:
        """End a job and all below it: now if it waits, else when its worker hears.

        The state before.

        Raises:
            UnknownJob: there is none.
        """
        before, left = await self._cancel_some(job_id)
        if before is None:
            raise UnknownJob(f"There is no job {job_id}.")
        if left:
            await self._cancel_rest()
        return JobState(before)

    async def _cancel_rest(self) -> None:
        """Go on with what a cancel, or the end of a parent, has listed."""
        while (await self._cancel_some(""))[1]:
            pass

    async def _cancel_some(self, job_id: str) -> tuple[str | None, int]:
        """A page of a cancel: the state that the job was in, and how many jobs are still listed."""
        before, left = await self._run("cancel", job_id, CANCEL_BATCH, _ms(CANCEL_HEARD_SECONDS))
        return before, int(left)

    async def answer(self, approval_id: str, answer: ApprovalAnswer) -> str:
        """Decide on a call that waits; its job, which goes on when nothing of it waits any more.

        Raises:
            ApprovalRefused: the answer was not taken; the text says why.
        """
        entry = json.dumps({"id": approval_id, **json.loads(serialized(answer))})
        told = await self._run("answer", approval_id, answer.decision, entry, uuid4().hex)
        if told[0] == "taken":
            return str(told[1])
        raise refusal(approval_id, answer.decision, told)

    async def send(self, job_id: str, text: str) -> None:
        """Keep a message for a job's agent, which reads it before its next model call.

        Raises:
            UnknownJob: there is no such job.
            InvalidJob: it has ended or had too many, or the message is empty or too long.
        """
        if not text.strip() or len(text) > MAX_MESSAGE_CHARACTERS:
            raise InvalidJob(f"A message has 1 to {MAX_MESSAGE_CHARACTERS} characters.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidJob("The message holds text that is not valid Unicode.") from error
        state = await self._run(
            "send", job_id, text, json.dumps({"text": text}), uuid4().hex, MAX_MESSAGES
        )
        if state is None:
            raise UnknownJob(f"There is no job {job_id}.")
        if state == "full":
            raise InvalidJob(f"Job {job_id} has had {MAX_MESSAGES} messages: it takes no more.")
        if JobState(state).is_terminal:
            raise InvalidJob(f"Job {job_id} has ended ({state}): it takes no messages.")

    # What admission does

    async def dispatch(self, most: int) -> list[Dispatched]:
        """Take waiting jobs for which there is room now, each in its turn.

        They are to be sent at once.

        One whose specification cannot be read ends here: nobody could run it.
        """
        request = uuid4().hex  # the client asks again by itself when an answer gets lost
        wires, fallback = (versions.WIRE_OLDEST, versions.WIRE_NEWEST), AdmissionPolicy().stored()
        jobs = []
        for job_id, number, stored in await self._run(
            "dispatch", most, _ms(TRANSIT_SECONDS), request, *wires, fallback
        ):
            try:
                jobs.append(Dispatched(spec_of(stored), int(number)))
            except InvalidJob as error:
                await self._run("reject", job_id, number, str(error))
        return jobs

    async def reap(self) -> dict[str, str]:
        """Take back what lapsed and end what is over; job id -> the state that it has now."""
        reaped = dict(await self._run("reap", REAP_BATCH))
        await self._cancel_rest()
        return reaped

    async def forget(self, older_than_seconds: float) -> int:
        """Remove what is known of jobs that ended so long ago, with their journals; how many."""
        before, forgotten = await self.now_ms() - _ms(older_than_seconds), 0
        while True:
            gone, looked_at = await self._run("forget", before, FORGET_BATCH)
            forgotten += len(gone)
            if looked_at < FORGET_BATCH:
                return forgotten

    # What a worker does

    async def register(
        self,
        worker: WorkerInfo,
        hold_seconds: float,
        policy: AdmissionPolicy | None = None,
        started_at: int = 0,
    ) -> None:
        """Tell that a worker lives, for that long; 0 says that it leaves.

        The installation's policy is that of the worker that started last (`started_at`, as
        `now_ms`).
        """
        flat = [value for pair in worker.fields().items() for value in pair]
        given = policy.stored() if policy else ""
        await self._run("register", worker.name, _ms(hold_seconds), given, started_at, *flat)

    async def claim(self, job_id: str, worker: WorkerInfo, lease_seconds: float) -> Claim | str:
        """Begin an attempt; or why not, in a word.

        A message that comes twice or late claims nothing.
        """
        request = uuid4().hex  # the client asks again by itself when an answer gets lost
        answer = await self._run(
            "claim",
            *(job_id, worker.name, worker.host, worker.host_limit),
            *(_ms(lease_seconds), request, _ms(HEAD_START_SECONDS)),
            *(worker.wire_oldest, worker.wire_newest, " ".join(worker.agents)),
        )
        if answer[0] == "refused":
            return str(answer[1])
        _, token, attempt, spec, ran, submitted, started = answer
        try:
            understood = JobSpec.model_validate_json(spec)
        except ValidationError:  # its wire version says too little
            why = f"wire version {worker.wire_newest} does not tell how this job is read"
            await self.release(job_id, int(token), why, wire=worker.wire_newest + 1)
            return why
        return Claim(
            spec=understood,
            token=int(token),
            attempt=int(attempt),
            ran_seconds=float(ran) / 1000,
            submitted_at=float(submitted) / 1000,
            started_at=float(started) / 1000,
        )

    async def beat(self, held: Mapping[str, int], lease_seconds: float) -> dict[str, str]:
        """Renew the leases of a worker's jobs (id -> token).

        `held`, `cancel` or `lost` for each.
        """
        flat: list[str | int] = [value for pair in held.items() for value in pair]
        answers = await self._run("beat", _ms(lease_seconds), *flat)
        return dict(zip(held, answers, strict=True))

    async def finish(
        self,
        job_id: str,
        token: int,
        result: JobResult,
        data: Mapping[str, JsonValue],
        messages: int | None = None,
    ) -> bool:
        """Commit an attempt's result; False when the attempt no longer holds the job.

        `messages` is how many messages to the job the result knows of.

        Raises:
            MessagesUnread: there are more; nothing is committed.
        """
        known = -1 if messages is None else messages
        arguments = (
            job_id,
            token,
            str(result.state),
            result.model_dump_json(),
            json.dumps(data),
            known,
        )
        told = await self._run("finish", *arguments)
        if told == UNREAD:
            raise MessagesUnread(f"More than {messages} messages were sent to job {job_id}.")
        return bool(told)

    async def release(
        self, job_id: str, token: int, reason: str, *, wire: int | None = None
    ) -> bool:
        """Give a job back unharmed: no attempt is used up.

        False when the attempt no longer holds it.

        With `wire` it goes to workers that know that version.
        """
        return bool(await self._run("release", job_id, token, reason, wire or 0))

    async def fail_attempt(self, job_id: str, token: int, reason: str) -> bool:
        """Queue the job for its next attempt.

        False when it has none left or the attempt does not hold it.
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
        timeout_seconds: float | None = None,
    ) -> JobState | None:
        """Let a job wait for people and for children without a place on a worker.

        No attempt is used up.

        Children that are not there yet are submitted in the same step. One beyond `bounds` is not:
        its parent's journal says so, as it says which have ended.

        While it waits for children alone its time runs on; when `timeout_seconds` of all its
        attempts are over it is ended, and its children are cancelled. While a person is awaited too
        its time stands still.

        Returns the state that it has then: `queued` when everything is there already, `cancelled`
        when somebody did that meanwhile; None when the attempt no longer holds the job.

        Raises:
            InvalidJob: a child cannot be stored; nothing has changed.
        """
        requests = [
            value for approval in approvals for value in (approval.id, approval.model_dump_json())
        ]
        submissions = [
            value for child in children for value in (*submission(child), entry_of_child(child))
        ]
        words = waiting_words([approval.tool for approval in approvals])
        time = (
            ("", "")
            if timeout_seconds is None
            else (_ms(timeout_seconds), str(out_of_time(timeout_seconds)))
        )
        limits = (bounds.max_children, bounds.max_tree_children, *time, len(approvals))
        state = await self._run(
            "park", job_id, token, KEPT_SECONDS, words, *limits, *requests, *submissions
        )
        return None if state is None else JobState(state)

    async def checkpoint(
        self, job_id: str, token: int, so_far: ResultSoFar, entry: Mapping[str, JsonValue] | None
    ) -> bool:
        """Keep what is reported of a job if it ends without its worker.

        False when the attempt lost the job.

        `entry` goes into the journal in the same step, None when another host cannot go on from
        here.
        """
        stored = so_far.model_dump_json(exclude_defaults=True)
        noted = "" if entry is None else json.dumps(entry)
        return bool(await self._run("checkpoint", job_id, token, stored, noted))

    async def _run(self, name: str, *arguments: str | float) -> Any:
        with redis_failures():
            return await self._scripts[name](keys=[], args=[self._keys.prefix, *arguments])


@cache
def script_source(name: str) -> str:
    """A script with what every script begins with."""
    folder = resources.files("orchestrator.jobs.store") / "scripts"
    return "\n".join(
        (folder / f"{part}.lua").read_text("utf-8") for part in ("common", "endings", name)
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
