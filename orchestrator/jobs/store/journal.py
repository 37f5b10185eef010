"""The journal: one append-only Redis stream per job, and the doorbell that says it grew.

Everything that a person or a parent sees of a job is a view of its journal. A reader gives the last
id that it saw and misses nothing: the doorbell only saves it from asking all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import Field, JsonValue
from redis.asyncio import Redis

from orchestrator.cancellation import cancel_and_wait
from orchestrator.jobs.failures import LeaseLost, UnknownJob
from orchestrator.jobs.spec import JobId, WireModel
from orchestrator.jobs.state import TERMINAL_STATES
from orchestrator.jobs.store.keys import Keys
from orchestrator.jobs.store.outage import through_outage
from orchestrator.jobs.store.redis_errors import redis_failures

BEGINNING = "0-0"
POLL_SECONDS = 2.0
"""A reader looks again after this time even when no bell rang: pub/sub may lose a message."""
PAGE = 500
"""Events fetched at once: bounds the memory of a reader of a long journal."""
APPENDED_SECONDS = 60
"""How long an append is remembered: the Redis client asks again by itself, within seconds."""

_APPEND = """
-- KEYS: journal, job, bell, request. ARGV: id, type, attempt, data, line or '', seconds to remember it,
-- token or '', the keys' prefix, then name and amount of what the event tells was consumed: it is charged to
-- the job, to all above it and to its tree, as far as they are still known.
-- Returns the event's id, or false when the attempt of that token no longer holds the job.
-- A request whose answer got lost comes again under the same name and finds the event that it made.
local known = redis.call('GET', KEYS[4])
if known then return known end
if ARGV[7] ~= '' and redis.call('HGET', KEYS[2], 'token') ~= ARGV[7] then return false end
local event = redis.call('XADD', KEYS[1], '*', 'type', ARGV[2], 'attempt', ARGV[3], 'data', ARGV[4])
redis.call('SET', KEYS[4], event, 'EX', ARGV[6])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[2], 'last_event', ARGV[5]) end
redis.call('PUBLISH', KEYS[3], ARGV[1])
if not ARGV[9] then return event end
local function charge(id)
  for at = 9, #ARGV, 2 do redis.call('HINCRBYFLOAT', ARGV[8] .. ':usage:' .. id, ARGV[at], ARGV[at + 1]) end
end
local id, root = ARGV[1], redis.call('HGET', KEYS[2], 'root')
local is_charged = false
while id and id ~= '' do
  local job = redis.call('HMGET', ARGV[8] .. ':job:' .. id, 'root', 'parent')
  if not job[1] then break end
  charge(id)
  is_charged = is_charged or id == root
  id = job[2]
end
if root and not is_charged then charge(root) end
return event
"""


class EventType(StrEnum):
    """What a journal tells."""

    JOB_STATE = "job.state"
    SANDBOX_READY = "sandbox.ready"
    SESSION_EVENT = "session.event"
    MODEL_REQUEST = "model.request"
    MODEL_REPLY = "model.reply"
    TOOL_CALL = "tool.call"
    TOOL_RESULT = "tool.result"
    TODOS = "todos"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_RESOLVED = "approval.resolved"
    CHILD_SUBMITTED = "child.submitted"
    CHILD_FINISHED = "child.finished"
    MESSAGE = "message"
    CHECKPOINT = "checkpoint"
    LOG = "log"


class JournalEvent(WireModel):
    """One entry of a job's journal."""

    id: str
    """The stream id: give the last one seen to read on from there."""
    at: float
    """Seconds since the epoch by the Redis server's clock."""
    job_id: JobId
    attempt: int
    type: EventType | str = Field(union_mode="left_to_right")
    """A plain text where another release wrote an event that this one does not know: to be passed
    over."""
    data: dict[str, JsonValue]

    @property
    def ends_job(self) -> bool:
        """Whether this is the job's last state."""
        return self.type is EventType.JOB_STATE and str(self.data["state"]) in TERMINAL_STATES


class Journal:
    """Reads and appends journals on one Redis."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._append = redis.register_script(_APPEND)
        self._bells = _Bells(redis, keys)

    async def append(
        self,
        job_id: str,
        attempt: int,
        kind: EventType,
        data: Mapping[str, JsonValue],
        line: str | None = None,
        *,
        name: str | None = None,
        used: Mapping[str, float] | None = None,
        token: int | None = None,
    ) -> str:
        """Add an event and ring; the event's id. `line` becomes the record's `last_event`.

        Asking again under the same `name`, within `APPENDED_SECONDS`, adds nothing more. What it
        tells was `used`, by the names of `Usage`, is charged in the same step, and once, to the
        job, to all jobs above it and to its tree. With a claim's `token` only while that claim
        holds the job: a process may be paused, and go on between a look at its lease and this.

        Raises:
            LeaseLost: the claim of `token` no longer holds the job; nothing is added.
            LedgerUnavailable: Redis does not answer.
        """
        request = self._keys.appended(name or uuid4().hex)
        keys = [
            self._keys.journal(job_id),
            self._keys.job(job_id),
            self._keys.bell(job_id),
            request,
        ]
        event: list[str | int] = [str(kind), attempt, json.dumps(data)]
        charged = [value for pair in (used or {}).items() for value in pair]
        fence = "" if token is None else token
        more = [line or "", APPENDED_SECONDS, fence, self._keys.prefix, *charged]
        with redis_failures():
            added = await self._append(keys=keys, args=[job_id, *event, *more])
        if added is None:
            raise LeaseLost("Another attempt holds the job.")
        return str(added)

    async def read(
        self, job_id: str, after: str = BEGINNING, count: int | None = None
    ) -> list[JournalEvent]:
        """The events that stand in the journal after the id `after`, oldest first."""
        with redis_failures():
            entries: Any = await self._redis.xrange(
                self._keys.journal(job_id), min=f"({after}", count=count
            )
        return [_event(job_id, entry_id, fields) for entry_id, fields in entries]

    async def messages(self, job_id: str, after: int) -> list[str]:
        """What was said to a job that has not ended, without the first so many."""
        with redis_failures():
            found: Any = await self._redis.lrange(self._keys.messages(job_id), after, -1)
        return list(found)

    async def last(self, job_id: str) -> JournalEvent | None:
        """The newest event, if there is one."""
        with redis_failures():
            entries: Any = await self._redis.xrevrange(self._keys.journal(job_id), count=1)
        return next((_event(job_id, entry_id, fields) for entry_id, fields in entries), None)

    async def follow(self, job_id: str, after: str = BEGINNING) -> AsyncIterator[JournalEvent]:
        """Every event after `after`, old ones and new ones, until the job's terminal state.

        Raises:
            UnknownJob: there is no such journal, or no longer: Redis came back without it.
            LedgerUnavailable: Redis stayed away for longer than `OUTAGE_SECONDS`.
        """
        async with self._bells.listen(job_id) as rung:
            while True:
                rung.clear()
                page = await through_outage(partial(self._page, job_id, after))
                for event in page:
                    after = event.id
                    yield event
                    if event.ends_job:
                        return
                if len(page) < PAGE:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(
                            POLL_SECONDS
                        ):  # wait_for loses cancels before Python 3.12
                            await rung.wait()

    async def _page(self, job_id: str, after: str) -> list[JournalEvent]:
        page = await self.read(job_id, after, PAGE)
        if not page and await self.last(job_id) is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return page

    async def close(self) -> None:
        """Stop listening."""
        await self._bells.close()


class _Bells:
    """One subscription for all followers of this process, instead of a blocked connection for each."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._listeners: dict[str, list[asyncio.Event]] = {}
        self._pubsub: Any = None
        self._pump: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def listen(self, job_id: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever the job's journal grew."""
        channel = self._keys.bell(job_id)
        rung = asyncio.Event()
        async with self._lock:
            first = channel not in self._listeners
            self._listeners.setdefault(channel, []).append(rung)
            if first:
                await self._subscribe(channel)
        try:
            yield rung
        finally:
            self._listeners[channel].remove(rung)
            if not self._listeners[channel]:
                del self._listeners[channel]
                await self._unsubscribe(channel)

    async def _subscribe(self, channel: str) -> None:
        if self._pubsub is None:
            self._pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        with contextlib.suppress(Exception):  # as above: a follower polls when it hears nothing
            await self._pubsub.subscribe(channel)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._ring())

    async def _unsubscribe(self, channel: str) -> None:
        async with self._lock:
            if channel not in self._listeners:  # else somebody began to listen meanwhile
                with contextlib.suppress(Exception):  # its bells will ring for nobody
                    await self._pubsub.unsubscribe(channel)

    async def _ring(self) -> None:
        while self._listeners:
            try:
                message = await self._pubsub.get_message(timeout=1.0)
            except Exception:  # noqa: BLE001 - any broken connection: it reconnects and subscribes again
                await asyncio.sleep(0.2)
                continue
            if message is not None:
                for rung in self._listeners.get(message["channel"], ()):
                    rung.set()

    async def close(self) -> None:
        if self._pump is not None:
            await cancel_and_wait(self._pump)
        if self._pubsub is not None:
            await self._pubsub.aclose()


def _event(job_id: str, entry_id: str, fields: Mapping[Any, Any]) -> JournalEvent:
    milliseconds = int(entry_id.split("-", 1)[0])
    return JournalEvent(
        id=entry_id,
        at=milliseconds / 1000,
        job_id=job_id,
        attempt=int(fields["attempt"]),
        type=fields["type"],
        data=json.loads(fields["data"]),
    )
