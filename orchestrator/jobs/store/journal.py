"""The journal: one append-only Redis stream per job, and a channel that announces new events.

All progress of a job that a person or a parent sees comes from its journal. A reader continues from
the last id that it has read, and so misses nothing; the channel only saves frequent polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import Field, JsonValue
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from ...cancellation import cancel_and_wait
from ...valid_text import clean, clean_text
from ..approvals import answer_fingerprint
from ..bounds import MAX_RECORD_BYTES
from ..failures import (
    BlobCorrupt,
    BlobMissing,
    InvalidJob,
    LeaseLost,
    UnknownJob,
)
from ..payloads import (
    PAYLOADS,
    PAYLOADS_WIRE,
    list_payload_names,
    put_back,
    unpacked,
)
from ..spec import JobId, WireModel
from ..state import TERMINAL_STATES, JobState
from .keys import Keys
from .lua_scripts import Scripts
from .outage import through_outage
from .redis_errors import redis_failures

BEGINNING = "0-0"
POLL_SECONDS = 2.0
"""A reader polls after this time without an announcement: pub/sub may lose a message."""
PAGE = 100
"""Events fetched at once: bounds the memory of a reader of a long journal."""
MAX_RESTORED_BYTES = 4 * 1024**2
"""The most bytes of payloads that are read together with events; the other events come without
`event`, as those with blobs do. It is 40 KB for each event of a page, more than a person reads."""
PAYLOADS_AT_ONCE = 100
"""The most payloads fetched in one command: a few hundred kilobytes, as Redis holds them."""
RECONNECT_SECONDS = 0.2
"""The time between two tries to subscribe: Redis is available within seconds after a restart."""
APPENDED_SECONDS = 60
"""How long an append is remembered: the Redis client repeats a lost call within seconds."""

Answer = TypeVar("Answer")


class EventType(StrEnum):
    """The kinds of events."""

    JOB_STATE = "job.state"
    """The job has another `state`; `reason` says why it waits or was requeued."""
    SANDBOX_READY = "sandbox.ready"
    """An attempt has its sandbox: `sandbox`, `host`, `files`, whether they are those of the attempt
    before (`resumed`; None if none had a sandbox), and the `checkpoint` that they come from."""
    SESSION_EVENT = "session.event"
    """A complete ADK event (`event`; `event_outline` while some of its `payloads` are missing;
    `event_blob` if it is large) of none of the next kinds."""
    MODEL_REQUEST = "model.request"
    """A request is sent: `id`, `model`, and `tokens`, its estimated size."""
    MODEL_REPLY = "model.reply"
    """An ADK event that a model has answered: also `author`, `text`, `calls`, `usage`, and
    `fallback_from` if another model of the list was asked first."""
    TOOL_CALL = "tool.call"
    """A tool begins: `id`, `tool`, `arguments`, with long texts cut."""
    TOOL_RESULT = "tool.result"
    """An ADK event with what tools returned: also `results`, with long texts cut."""
    TODOS = "todos"
    """The agent has another plan: `todos`."""
    APPROVAL_REQUESTED = "approval.requested"
    """A call waits for a person: `id`, `tool`, `arguments` and the allowed decisions."""
    APPROVAL_RESOLVED = "approval.resolved"
    """A person has decided: `id`, `decision`, and a message or other arguments."""
    MODEL_STATE = "model.state"
    """The job begins to wait for a model: `model`, its `state`, `why`, and `until` when."""
    CHILD_SUBMITTED = "child.submitted"
    """The agent has delegated: `id`, `agent` and the task of the child."""
    CHILD_FINISHED = "child.finished"
    """A child has ended: `id` and `state`."""
    CHILD_LANDED = "child.landed"
    """What became of a child's changes: `id`, `outcome` (`in`, `out`, `sent back`), `reason`."""
    LANDING = "landing"
    """Changes of `children` begin to be merged; `before` is the blob that undoes it. Without
    children: it was undone."""
    MESSAGE = "message"
    """A person has sent the agent a message: `text`."""
    VERIFY = "verify"
    """A verification ran: `command`, `exit_code`, `output_tail`, `seconds`; with `children`, it was
    that of a landing."""
    CHANGES_COLLECTED = "changes.collected"
    """The changes of a job that had ended are in its result now (`files`, their number), or are
    lost (`lost`, the reason)."""
    CHECKPOINT = "checkpoint"
    """The changed files were copied to the blob store; the job can be forked from here."""
    NETWORK_CONNECTION = "network.connection"
    """A connection of a command through the proxy: `host`, `port`, bytes, or why it was refused."""
    NETWORK_SUMMARY = "network.summary"
    """Sums by host (`hosts`) of the connections after the first 100."""
    NETWORK_LIMIT = "network.limit"
    """The bytes that the job may send and receive are used up."""
    SCRIPT_STARTED = "script.started"
    """A script begins: the `interpreter`'s version."""
    SCRIPT_CALL = "script.call"
    """A script has made `calls`: `key`, `function` and `label` of each, its `phase`, `agent` and
    `jobs` if it has any."""
    SCRIPT_RESULT = "script.result"
    """A call (`key`) has its result: `ok`, `label`, and the `value` or its `blob`."""
    SCRIPT_PHASE = "script.phase"
    """A phase begins: `name`, and the files from which its calls start."""
    SCRIPT_LOG = "script.log"
    """The `lines` that a script has printed or logged."""
    SCRIPT_ENDED = "script.ended"
    """A script has ended: how many calls were `asked`, `answered`, `failed`, `cancelled` and
    `never_run`, and why not (`reasons`)."""
    LOG = "log"
    """A `text` of a `stream`: output of a running command, a model's text, a worker's note."""


_NEEDED: Mapping[str, frozenset[str]] = {
    EventType.JOB_STATE: frozenset({"state"}),
    EventType.TOOL_CALL: frozenset({"id", "tool"}),
    EventType.APPROVAL_RESOLVED: frozenset({"id", "decision"}),
    EventType.CHILD_SUBMITTED: frozenset({"id"}),
    EventType.CHILD_FINISHED: frozenset({"id"}),
    EventType.CHILD_LANDED: frozenset({"id", "outcome"}),
    EventType.LANDING: frozenset({"children"}),
    EventType.VERIFY: frozenset({"command"}),
    EventType.CHECKPOINT: frozenset({"changes"}),
    EventType.SCRIPT_STARTED: frozenset({"interpreter"}),
    EventType.SCRIPT_CALL: frozenset({"calls"}),
    EventType.SCRIPT_LOG: frozenset({"lines"}),
}
"""What readers rely on in the data of a kind: all releases have written it. An entry without it is
of a release to come, and is passed over or refused as one of an unknown kind is."""
OF_ANOTHER_FORM = " (of another form)"
"""What marks the kind of an entry that is not understood."""


class JournalEvent(WireModel):
    """One entry of a job's journal."""

    id: str
    """The stream id; reading continues after it."""
    at: float
    """Seconds since the epoch by the Redis server's clock."""
    job_id: JobId
    attempt: int
    type: EventType | str = Field(union_mode="left_to_right")
    """A plain text for an unknown event of another release, which readers ignore."""
    data: dict[str, JsonValue]

    @property
    def ends_job(self) -> bool:
        """Whether this event is the job's terminal state."""
        return self.type is EventType.JOB_STATE and str(self.data["state"]) in TERMINAL_STATES


class Journal:
    """Reads and appends to journals on one Redis."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._run = Scripts(redis, keys, ["append"]).run
        self._subscriptions = _Subscriptions(redis)

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
        payloads: Mapping[str, bytes] = MappingProxyType({}),
    ) -> str:
        """Append an event, publish that the journal changed, and return the event's id.

        Args:
            job_id: The job.
            attempt: The number of the job's attempt.
            kind: The kind of event.
            data: Its data.
            line: A text for the record's `last_event`.
            name: The name of this request: repeated under the same name within `APPENDED_SECONDS`,
                it appends nothing.
            used: The used resources, by the names of `Usage`. They are charged in the same step,
                and once, to the job, to its ancestors and to its tree.
            token: The token of a claim, which must hold the job: between a check of its lease and
                this call, the process may have been suspended.
            payloads: The packed payloads of the data by name, without those that are blobs. Each is
                stored once. A job whose journal names any needs a release that can read them.

        Raises:
            InvalidJob: The data is too large for a record; the caller did not bound it.
            LeaseLost: The claim of `token` no longer holds the job; nothing is appended.
            LedgerUnavailable: Redis does not respond.
        """
        fence = "" if token is None else token
        stored = json.dumps(clean(data))
        if len(stored) > MAX_RECORD_BYTES:
            raise InvalidJob(f"An event of {len(stored):,} bytes is too large for a journal.")
        event = (job_id, kind, attempt, stored, clean_text(line or ""))
        request = (name or uuid4().hex, APPENDED_SECONDS, fence)
        charged = [value for pair in (used or {}).items() for value in pair]
        kept = [value for pair in payloads.items() for value in pair]
        needs = PAYLOADS_WIRE if PAYLOADS in data else 0
        added = await self._run("append", *event, *request, needs, len(payloads), *kept, *charged)
        if added is None:
            raise LeaseLost("Another attempt holds the job.")
        return str(added)

    async def read(
        self, job_id: str, after: str = BEGINNING, count: int | None = None
    ) -> list[JournalEvent]:
        """Return the events after the id `after`, oldest first, at most `count`.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            entries: Any = await self._redis.xrange(
                self._keys.journal(job_id), min=f"({after}", count=count
            )
        if not entries and (first := await self._first(job_id)) and _follows(first.id, after):
            return [first]
        return await self._restored(job_id, entries)

    async def read_before(self, job_id: str, before: str | None, count: int) -> list[JournalEvent]:
        """Return the newest events before the id `before`, oldest first, at most `count`.

        Args:
            job_id: The job.
            before: An event's id; None: the newest events of all.
            count: How many at most.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        end = "+" if before is None else f"({before}"
        with redis_failures():
            entries: Any = await self._redis.xrevrange(
                self._keys.journal(job_id), max=end, count=count
            )
        if not entries and before is None:
            first = await self._first(job_id)
            return [] if first is None else [first]
        return await self._restored(job_id, entries[::-1])

    async def _restored(self, job_id: str, entries: Any) -> list[JournalEvent]:
        """Return entries as events, with those of their payloads that Redis has.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        events = [_event(job_id, entry_id, fields) for entry_id, fields in entries]
        wanted: dict[str, int] = {}
        left = MAX_RESTORED_BYTES
        for event in events:
            sizes = {
                name: size
                for name, size in list_payload_names(event.data).items()
                if name not in wanted
            }
            if sum(sizes.values()) <= left:
                wanted |= sizes
                left -= sum(sizes.values())
        contents = await self._payloads(job_id, wanted)
        return [_with_payloads(event, contents) for event in events]

    async def complete(
        self, entry: JournalEvent, read_blob: Callable[[str], Awaitable[bytes]]
    ) -> JournalEvent:
        """Return an event with all of its payloads; a sentence replaces one that has expired.

        Args:
            entry: The event.
            read_blob: Returns the content of a blob, and raises BlobMissing without it.

        Raises:
            LedgerUnavailable: Redis does not respond.
            Exception: What `read_blob` raises besides BlobMissing.
        """
        wanted = list_payload_names(entry.data)
        contents: dict[str, bytes | None] = {**await self._payloads(entry.job_id, wanted)}
        for name in wanted.keys() - contents.keys():
            try:
                contents[name] = await read_blob(name)
            except BlobCorrupt:
                raise
            except BlobMissing:
                contents[name] = None
        return _with_payloads(entry, contents)

    async def _payloads(self, job_id: str, wanted: Mapping[str, int]) -> dict[str, bytes]:
        """Return the contents of those payloads of a job that Redis has.

        Args:
            job_id: The job.
            wanted: Their names, with the size of each.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        names, found = list(wanted), {}
        for first in range(0, len(names), PAYLOADS_AT_ONCE):
            some = names[first : first + PAYLOADS_AT_ONCE]
            with redis_failures():
                stored: Any = await self._redis.execute_command(  # type: ignore[no-untyped-call] # redis-py's types have gaps
                    "HMGET", self._keys.payloads(job_id), *some, **{NEVER_DECODE: True}
                )
            for name, packed in zip(some, stored, strict=True):
                with contextlib.suppress(ValueError):  # a damaged one is treated as missing
                    if packed is not None:
                        found[name] = unpacked(packed, wanted[name])
        return found

    async def _first(self, job_id: str) -> JournalEvent | None:
        """Return the first event of a journal; None when the job does not exist.

        The scripts write it with the second event: until then it is in the job's record only.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            at: Any = await self._redis.hget(self._keys.job(job_id), "submitted_at")
        fields = {"type": EventType.JOB_STATE, "attempt": 0, "data": '{"state":"queued"}'}
        return None if at is None else _event(job_id, f"{at}-0", fields)

    async def is_answered_by(self, user: str, entry: JournalEvent) -> bool:
        """Return whether an answer in a journal was given by a user of Redis.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            proof = await self._redis.get(self._keys.answers(user, str(entry.data["id"])))
        return proof == answer_fingerprint(entry.data)

    async def messages(self, job_id: str, after: int) -> list[str]:
        """Return the messages to a job that has not ended, without the first `after`.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            found: Any = await self._redis.lrange(self._keys.messages(job_id), after, -1)
        return list(found)

    async def last(self, job_id: str) -> JournalEvent | None:
        """Return the newest event; None when the journal does not exist.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            entries: Any = await self._redis.xrevrange(self._keys.journal(job_id), count=1)
        newest = await self._restored(job_id, entries)
        return newest[0] if newest else await self._first(job_id)

    async def follow(
        self, job_id: str, after: str = BEGINNING
    ) -> AsyncGenerator[JournalEvent, None]:
        """Yield every event after `after`, and new ones, until the job's terminal state.

        It may be abandoned at any event: its end awaits nothing.

        Raises:
            UnknownJob: The journal does not exist, or is lost after a restart of Redis.
            LedgerUnavailable: Redis was unavailable for longer than `OUTAGE_SECONDS`.
        """
        with self._subscriptions.of(self._keys.journal_changed(job_id)) as changed:
            await self._subscriptions.subscribe()
            while True:
                changed.clear()
                page = await through_outage(partial(self._page, job_id, after))
                for event in page:
                    after = event.id
                    yield event
                    if event.ends_job:
                        return
                if len(page) < PAGE:
                    await _announced(changed)

    async def _page(self, job_id: str, after: str) -> list[JournalEvent]:
        page = await self.read(job_id, after, PAGE)
        if not page and await self.last(job_id) is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return page

    async def at_end(self, job_id: str, ask: Callable[[], Awaitable[Answer | None]]) -> Answer:
        """Ask now, and again when the job has ended, until there is an answer; return it.

        A running job is asked rarely, however many events it has.

        Args:
            job_id: The job.
            ask: Returns None until the job has ended.

        Raises:
            LedgerUnavailable: Redis was unavailable for longer than `OUTAGE_SECONDS`.
            Exception: Any other exception that `ask` raises.
        """
        with self._subscriptions.of(self._keys.job_ended(job_id)) as ended:
            await self._subscriptions.subscribe()
            while (answer := await through_outage(ask)) is None:
                await _announced(ended)
                ended.clear()
            return answer

    async def close(self) -> None:
        """Close the subscriptions; all followers end."""
        await self._subscriptions.close()


class _Subscriptions:
    """One connection for all followers of this process, instead of a blocked one for each.

    Followers may be abandoned generators, which are closed when their loop ends. So leaving awaits
    nothing: the task that receives the announcements also unsubscribes, and `close` ends it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._followers: dict[str, list[asyncio.Event]] = {}
        self._subscribed: set[str] = set()
        self._pubsub: Any = None
        self._receiver: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @contextlib.contextmanager
    def of(self, channel: str) -> Iterator[asyncio.Event]:
        """Follow a channel while the context is open; its announcements set the event."""
        changed = asyncio.Event()
        self._followers.setdefault(channel, []).append(changed)
        try:
            yield changed
        finally:
            self._followers[channel].remove(changed)
            if not self._followers[channel]:
                del self._followers[channel]

    async def subscribe(self) -> None:
        """Subscribe to the channels that are followed: later changes are announced."""
        # redis-py writes with wait_for, which loses cancellations before Python 3.12.
        await asyncio.shield(asyncio.create_task(self._subscribe()))
        if self._receiver is None or self._receiver.done():
            self._receiver = asyncio.create_task(self._receive())

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._pubsub is None:
                self._pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            if new := self._followers.keys() - self._subscribed:
                with contextlib.suppress(Exception):  # a follower polls without announcements
                    await self._pubsub.subscribe(*new)
                    self._subscribed |= new

    async def _unsubscribe(self) -> None:
        """Unsubscribe from the channels that are no longer followed."""
        async with self._lock:
            if left := self._subscribed - self._followers.keys():
                self._subscribed -= left
                with contextlib.suppress(Exception):  # announcements without follower are ignored
                    await self._pubsub.unsubscribe(*left)

    async def _receive(self) -> None:
        while self._followers or self._subscribed:
            try:
                message = await self._pubsub.get_message(timeout=1.0)
            except Exception:  # noqa: BLE001 - any broken connection: it reconnects automatically
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            if message is not None:
                for changed in self._followers.get(message["channel"], ()):
                    changed.set()
            if not self._subscribed <= self._followers.keys():
                await self._unsubscribe()

    async def close(self) -> None:
        if self._receiver is not None:
            await cancel_and_wait(self._receiver)
        if self._pubsub is not None:
            await self._pubsub.aclose()


async def _announced(changed: asyncio.Event) -> None:
    """Wait for an announcement, which may be lost, or `POLL_SECONDS`."""
    # wait_for loses cancellations before Python 3.12
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_SECONDS):
            await changed.wait()


def _follows(event_id: str, other: str) -> bool:
    """Return whether an event follows another, by their ids."""
    first, second = ([int(part) for part in one.split("-")] for one in (event_id, other))
    return first > second


def _with_payloads(event: JournalEvent, contents: Mapping[str, bytes | None]) -> JournalEvent:
    if PAYLOADS not in event.data:
        return event
    return event.model_copy(update={"data": put_back(event.data, contents)})


def _event(job_id: str, entry_id: str, fields: Mapping[Any, Any]) -> JournalEvent:
    """Return an entry as an event; one that is not understood has a kind that nobody knows."""
    kind, attempt, data = fields.get("type", ""), str(fields.get("attempt")), _data(fields)
    if not kind or not attempt.isdecimal() or not _is_understood(kind, data):
        kind = (kind or "event") + OF_ANOTHER_FORM
    return JournalEvent(
        id=entry_id,
        at=int(entry_id.partition("-")[0]) / 1000,
        job_id=job_id,
        attempt=int(attempt) if attempt.isdecimal() else 0,
        type=kind,
        data=data if isinstance(data, dict) else {"data": data},
    )


def _is_understood(kind: str, data: Any) -> bool:
    if not isinstance(data, dict) or not _NEEDED.get(kind, frozenset()) <= data.keys():
        return False
    return kind != EventType.JOB_STATE or str(data["state"]) in frozenset(JobState)


def _data(fields: Mapping[Any, Any]) -> Any:
    try:
        return json.loads(fields["data"])
    except (KeyError, ValueError):
        return None
