"""A sub-agent's session, written to the job's journal event by event, and read to resume it.

Each complete ADK event is one journal event whose data holds it completely together with a readable
summary; long values in both are payloads. So the next attempt needs only the journal: it replays
the events and asks the model for the next step. Live output is appended as log events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog
from google.adk.events import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions import InMemorySessionService, Session
from pydantic import JsonValue, ValidationError

from fanout.orchestrator.deep_agent import (
    FALLBACK_FROM,
    confirmation_answers,
    confirmation_calls,
    context_stats,
    context_summary,
    is_reply,
    later_than,
    message_number,
    price,
    side_calls,
    text_of,
    usage_of,
)
from fanout.orchestrator.jobs.accounts import charged
from fanout.orchestrator.jobs.bounds import (
    MAX_EVENT_BYTES,
    MAX_NOTE_BYTES,
    MAX_RECORD_BYTES,
    fit,
    json_bytes,
)
from fanout.orchestrator.jobs.conversation import event_json, split_lost
from fanout.orchestrator.jobs.failures import LedgerUnavailable, NotUnderstood
from fanout.orchestrator.jobs.payloads import OUTLINE, PAYLOADS, Payload, shorten, take_out
from fanout.orchestrator.jobs.result import ContextStats
from fanout.orchestrator.jobs.store.journal import EventType, Journal, JournalEvent
from fanout.orchestrator.jobs.store.outage import through_outage
from fanout.orchestrator.jobs.totals import VERIFICATIONS, Totals
from fanout.orchestrator.shortening import one_line
from fanout.orchestrator.valid_models import valid_json
from fanout.orchestrator.valid_text import clean, clean_text
from fanout.orchestrator.workspace.blobs import BlobStore, BlobStoreUnusable

from ..heartbeat import HeldLease
from .activity import JobActivity
from .history import History, earlier_events

log = structlog.get_logger(__name__)

WHOLE_PARTS = ("event", OUTLINE, PAYLOADS)
"""What of an entry's data is never cut: the agent's event."""
NOT_BY_APPROVER = "The answer was not given by a person who may approve, so it does not count."
LINE_CHARACTERS = 80
"""The length of a record's `last_event`, which is one line of a table."""
LOG_SECONDS = 1.0
"""The time between two `log` events of a job: hundreds of jobs share one Redis, and a person reads
no faster."""

MAX_LOG_CHARACTERS = 400
"""The length of the text in a `log` event: a few lines. An hour of output adds at most 2 MB to a
journal."""


class AttemptJournal:
    """The journal of one attempt: every append checks the lease first.

    Args:
        journal: The journals of all jobs.
        blobs: Where large events are stored.
        lease: The attempt's lease.
        progress: Is called with a line for a dashboard; it contains names of tools, no texts.
        approvers: Who may answer approvals; empty: everybody.
        activity: Receives the attempt's activity; None: nobody reads it.
        totals: Where verifications and what models use are counted; None: nowhere.
    """

    def __init__(
        self,
        journal: Journal,
        blobs: BlobStore,
        lease: HeldLease,
        progress: Callable[[str], None],
        *,
        approvers: Collection[str] = (),
        activity: JobActivity | None = None,
        totals: Totals | None = None,
    ) -> None:
        self._totals = totals or Totals()
        self.activity = activity or JobActivity()
        """What the attempt does at this moment, for who watches it."""
        self._approvers = approvers
        self._journal = journal
        self._blobs = blobs
        self._lease = lease
        self._progress = progress
        self._replies = 0
        self._blobs_put: set[str] = set()
        """The payloads that this attempt has stored as blobs."""
        self._appended = 0
        """The number of events that this attempt has appended."""
        self._base_content: list[JournalEvent] | None = [] if lease.claim.is_first else None
        """The events of earlier attempts, once they were read; a first attempt has none."""
        self.messages_read = 0
        """The number of messages to the job that its conversation contains."""
        self._summaries: dict[str, Event] = {}
        """The events with summaries, by id."""

    @property
    def context_stats(self) -> ContextStats:
        """What summaries did to the job's conversation, in earlier attempts too."""
        stats = vars(context_stats(self._summaries.values()))
        return ContextStats.model_validate(
            {name: stats[name] for name in ContextStats.model_fields}
        )

    async def note(
        self,
        kind: EventType,
        data: dict[str, JsonValue],
        line: str | None = None,
        used: dict[str, float] | None = None,
    ) -> None:
        """Append an event and charge its usage; an outage shorter than the lease is survived.

        Long values become payloads.

        Args:
            kind: The event's type.
            data: The event's data; what is not a payload is cut if it is too long.
            line: The record's new `last_event`; None leaves it.
            used: The usage to charge to the job, by field name.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
        """
        await self._append(kind, *take_out(clean(data)), line, used)

    async def _append(
        self,
        kind: EventType,
        data: dict[str, JsonValue],
        payloads: Mapping[str, Payload],
        line: str | None,
        used: dict[str, float] | None,
    ) -> None:
        self._lease.check()
        claim = self._lease.claim
        self._report_progress(kind, data)
        self._appended += 1
        name = f"{claim.spec.id}:{claim.token}:{self._appended}"
        kept, fitting = await self._stored(payloads), _fitting(data)

        async def append() -> None:
            self._lease.check()
            await self._journal.append(
                claim.spec.id,
                claim.attempt,
                kind,
                fitting,
                line,
                name=name,
                used=used,
                token=claim.token,
                payloads=kept,
            )

        await through_outage(append)

    async def _stored(self, payloads: Mapping[str, Payload]) -> dict[str, bytes]:
        """Store the large payloads as blobs, and return the others as Redis is to hold them.

        Blobs come first: an entry never names one that is still to come. Those of an attempt that
        ends before its entry are removed as old blobs are.

        Raises:
            JobFailure: A payload is too large for Redis, and the blob store does not take it.
        """
        kept = {}
        for name, payload in payloads.items():
            if name in self._blobs_put:
                continue
            if not payload.is_large:
                kept[name] = payload.packed()
                continue
            try:
                await self._blobs.put(payload.content)
                self._blobs_put.add(name)
            except BlobStoreUnusable:
                packed = await asyncio.to_thread(payload.packed)
                if len(packed) > MAX_RECORD_BYTES:
                    raise
                kept[name] = packed
        return kept

    def _report_progress(self, kind: EventType, data: dict[str, JsonValue]) -> None:
        if kind is EventType.MODEL_REPLY:
            self._replies += 1
        elif kind is EventType.VERIFY and "seconds" in data:
            result = "passed" if data["exit_code"] == 0 else "failed"
            self._totals.observe(VERIFICATIONS, float(str(data["seconds"])), result)
        elif kind is EventType.TOOL_RESULT:
            self.activity.end("tool")
        elif kind is EventType.TOOL_CALL:
            self.activity.begin("tool", tool=data["tool"])
            self._progress(f"turn {self._replies} · {data['tool']}")

    async def note_session_event(self, event: Event, used: dict[str, float] | None = None) -> None:
        """Append a complete ADK event.

        Args:
            event: The event.
            used: What to charge to the job for it, by the names of `Usage`; None: what it reports.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
            JobFailure: A large event cannot be stored as a blob.
        """
        raw = valid_json(event, exclude_none=True)
        complete = _without_defaults(json.loads(raw))
        readable = _readable(event, complete)
        data, payloads = take_out({**readable, "event": complete})
        if json_bytes(data.get(OUTLINE, complete)) > MAX_EVENT_BYTES:
            blob = await self._blobs.put(raw.encode())
            data, payloads = {**shorten(readable), "event_blob": blob}, {}
        used, model = _used(event) if used is None else used, event.model_version or ""
        await self._append(_kind(event), data, payloads, _line(event), charged(used, model))
        self._totals.model_used(model, used)
        self._count(event)

    async def history(self) -> History:
        """Return the conversation of earlier attempts, and of the job that this one continues.

        Raises:
            NotUnderstood: Another release wrote an entry that this one cannot read.
            LedgerUnavailable: Redis does not answer.
            JobFailure: The blob of a large event or of the earlier conversation cannot be read.
        """
        history = History()
        if conversation := self._lease.claim.spec.conversation:
            stored = await self._blobs.get(conversation)
            history.earlier = await asyncio.to_thread(earlier_events, stored)
        kept, lost = split_lost(await self.entries_so_far())
        for entry in kept:
            history.add(await self._checked(entry), await self._session_event(entry))
        history.lost = [event for entry in lost if (event := await self._session_event(entry))]
        for event in history.events:
            self._count(event)
        return history

    async def _checked(self, entry: JournalEvent) -> JournalEvent:
        """Return an entry; an answer that none of the approvers gave is a rejection.

        Whoever may write the journal could have made it up.
        """
        if not self._approvers or entry.type is not EventType.APPROVAL_RESOLVED:
            return entry
        by = str(entry.data.get("by", ""))
        if by in self._approvers and await self._journal.is_answered_by(by, entry):
            return entry
        log.warning("an answer to an approval was not given by an approver", job=entry.job_id)
        refused = {"id": entry.data["id"], "decision": "reject", "message": NOT_BY_APPROVER}
        return entry.model_copy(update={"data": refused})

    def _count(self, event: Event) -> None:
        if event.actions.compaction:
            self._summaries[event.id] = event
        self.messages_read = max(self.messages_read, message_number(event))

    async def messages(self, after: int) -> list[str]:
        """Return the messages to the job, without the first `after`.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        return await self._journal.messages(self._lease.claim.spec.id, after)

    async def entries(self) -> list[JournalEvent]:
        """Return all entries of the job, of earlier attempts too.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        return await self._journal.read(self._lease.claim.spec.id)

    async def entries_so_far(self) -> list[JournalEvent]:
        """Return the entries of all attempts; they are read once until this one appends one."""
        if self._appended or self._base_content is None:
            self._base_content = await self.entries()
        return self._base_content

    async def last_sandbox(self) -> JournalEvent | None:
        """Return the entry in which the last attempt with a sandbox described it; None if none did.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        entries = reversed(await self.entries_so_far())
        return next((one for one in entries if one.type is EventType.SANDBOX_READY), None)

    async def checkpoint(self) -> JournalEvent | None:
        """Return the entry of the newest checkpoint of the conversation; None if there is none.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        kept, _ = split_lost(await self.entries())
        return next((entry for entry in reversed(kept) if entry.type is EventType.CHECKPOINT), None)

    async def _session_event(self, entry: JournalEvent) -> Event | None:
        raw = await event_json(entry, self._journal, self._blobs.get)
        try:
            return None if raw is None else Event.model_validate_json(raw)
        except ValidationError:
            why = f"The job's journal has a {entry.type} of a form that this release does not know."
            raise NotUnderstood(why) from None


class JournaledSessions(InMemorySessionService):
    """A session service that keeps the session in memory and appends its events to a journal."""

    def __init__(self, journal: AttemptJournal) -> None:
        super().__init__()
        self._journal = journal
        self._replaying = False

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to the journal and then to the session.

        The journal is first, so that no model or tool is asked twice for the same step.

        Raises:
            LeaseLost: The attempt's lease is lost.
            JobFailure: The event cannot be stored.
        """
        if session.events and not event.partial:
            # Another host's clock may be ahead, and summaries depend on the order of times.
            event.timestamp = later_than(session.events[-1].timestamp, event.timestamp)
        if not event.partial and not self._replaying:
            await self._journal.note_session_event(event)
        return await super().append_event(session, event)

    async def replay(self, session: Session, events: list[Event]) -> None:
        """Append events of earlier attempts and jobs to the session, but not to the journal."""
        self._replaying = True
        try:
            for event in events:
                await self.append_event(session, event)
        finally:
            self._replaying = False


class JournalPlugin(BasePlugin):
    """Appends an entry before each tool call, and each new todo list.

    The appends are a fence as well; for requests to models the rate limiter's are.
    """

    def __init__(self, journal: AttemptJournal) -> None:
        super().__init__(name="journal")
        self._journal = journal

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> None:
        """Append that a tool starts; its result is a session event.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
        """
        data = {
            "id": tool_context.function_call_id,
            "tool": tool.name,
            "arguments": json.loads(json.dumps(tool_args, default=str)),
        }
        await self._journal.note(EventType.TOOL_CALL, data, _call_line(tool.name, tool_args))

    async def after_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any
    ) -> None:
        """Append a new todo list.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
        """
        del tool_args
        is_success = isinstance(result, dict) and result.get("status") == "success"
        if tool.name == "write_todos" and is_success:
            await self._journal.note(EventType.TODOS, {"todos": tool_context.state.get("todos")})


def _without_defaults(complete: dict[str, Any]) -> dict[str, Any]:
    """Return an event as JSON without the actions that it does not have: 130 bytes of each."""
    actions = {name: value for name, value in complete.get("actions", {}).items() if value != {}}
    return {**complete, "actions": actions}


def _fitting(data: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return an entry's data with what people read of it cut to the size of a note."""
    whole = {name: data[name] for name in WHOLE_PARTS if name in data}
    readable = fit({name: data[name] for name in data if name not in whole}, MAX_NOTE_BYTES)
    return {**(readable if isinstance(readable, dict) else {}), **whole}


def _used(event: Event) -> dict[str, float]:
    """Return the usage that an event reports, by field name.

    A reply that the harness gave instead of a model is not a model call.
    """
    used = {name: value for name, value in vars(usage_of([event], price)).items() if value}
    if event.usage_metadata is None and event.model_version is None and not side_calls(event):
        used.pop("model_calls", None)
    return used


def _kind(event: Event) -> EventType:
    if confirmation_calls(event) or confirmation_answers(event):
        return EventType.SESSION_EVENT
    if event.get_function_responses():
        return EventType.TOOL_RESULT
    return EventType.MODEL_REPLY if is_reply(event) else EventType.SESSION_EVENT


def _readable(event: Event, complete: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the part of an event that a person is shown.

    Args:
        event: The event.
        complete: The same event as JSON.
    """
    data: dict[str, JsonValue] = {"author": event.author}
    if text := text_of(event):
        data["text"] = clean_text(text)
    if calls := event.get_function_calls():
        data["calls"] = [{"id": call.id, "tool": call.name} for call in calls]
    parts = (complete.get("content") or {}).get("parts") or ()
    if results := [part["function_response"] for part in parts if "function_response" in part]:
        data["results"] = [
            {"id": one.get("id"), "tool": one.get("name"), "result": one.get("response", {})}
            for one in results
        ]
    if usage := event.usage_metadata:
        data["usage"] = {
            "input_tokens": usage.prompt_token_count or 0,
            "output_tokens": usage.candidates_token_count or 0,
            "cached_tokens": usage.cached_content_token_count or 0,
        }
    if (summarized := context_summary(event)) is not None:
        data["context_summary"] = summarized.metadata()
    if fallback := (event.custom_metadata or {}).get(FALLBACK_FROM):
        data["fallback_from"] = fallback
    if event.error_code:
        data["error"] = event.error_code
    return data


def _line(event: Event) -> str | None:
    text = text_of(event)
    return one_line(text, LINE_CHARACTERS) if text and is_reply(event) else None


def _call_line(tool: str, arguments: dict[str, Any]) -> str:
    """Return a tool call in one line: the tool and its first argument."""
    first = next(iter(arguments.values()), "")
    return one_line(f"{tool} {first}" if isinstance(first, str) else tool, LINE_CHARACTERS)


class LiveLog:
    """Appends the text of a run's partial events to the journal, at most once a second.

    Args:
        journal: The attempt's journal.
        agent: The name of the job's agent, the author of its events.
    """

    def __init__(self, journal: AttemptJournal, agent: str) -> None:
        self._journal = journal
        self._agent = agent
        self._noted_at = 0.0
        self._reply = ""
        """The end of the reply that is being streamed."""

    async def add(self, event: Event) -> None:
        """Append the text of a partial event, unless some was appended just before.

        Raises:
            LeaseLost: The attempt's lease is lost.
        """
        if not event.partial:
            self._reply = ""
            return
        text = text_of(event)
        is_reply = event.author == self._agent
        if is_reply:
            self._reply = text = (self._reply + text)[-MAX_LOG_CHARACTERS:]
        now = time.monotonic()
        if not text.strip() or now - self._noted_at < LOG_SECONDS:
            return
        self._noted_at = now
        newest = text.strip()[-MAX_LOG_CHARACTERS:]
        with contextlib.suppress(LedgerUnavailable):  # live output may be lost
            await self._journal.note(
                EventType.LOG,
                {"stream": "text" if is_reply else "output", "text": newest},
                newest.splitlines()[-1].strip()[-LINE_CHARACTERS:],
            )
