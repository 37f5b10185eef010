"""A sub-agent's session, written to the job's journal event by event, and read back to go on.

Each complete ADK event is one journal event whose data holds it whole (`event`, or `event_blob`
when it is large) beside what a person wants to see. That makes the journal enough for the next
attempt: it replays the events and asks the model for the next step only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from google.adk.events import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions import InMemorySessionService, Session
from pydantic import JsonValue, ValidationError

from orchestrator.deep_agent import (
    confirmation_answers,
    confirmation_calls,
    is_reply,
    later_than,
    message_number,
    price,
    text_of,
    usage_of,
)
from orchestrator.jobs.failures import NotUnderstood
from orchestrator.jobs.store.journal import EventType, Journal, JournalEvent
from orchestrator.jobs.store.outage import through_outage
from orchestrator.shortening import one_line
from orchestrator.workspace.blobs import BlobStore
from workers.agent.past import Past, of_conversation
from workers.heartbeat import HeldLease

INLINE_EVENT_BYTES = 64 * 1024
"""Larger ADK events are blobs: Redis holds ids and lists, not file contents."""
SHOWN_CHARACTERS = 2_000
"""How much of a text or an argument the readable part of an event shows."""
LINE_CHARACTERS = 80
"""A record's `last_event` is one line of a table."""


class AttemptJournal:
    """The journal of one attempt: every append passes the lease's fence first."""

    def __init__(
        self, journal: Journal, blobs: BlobStore, lease: HeldLease, progress: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._blobs = blobs
        self._lease = lease
        self._progress = progress
        """Told what a dashboard may show: names of tools, no texts."""
        self._replies = 0
        self.messages_read = 0
        """How many messages to the job stand in its conversation."""

    async def note(
        self,
        kind: EventType,
        data: dict[str, JsonValue],
        line: str | None = None,
        used: dict[str, float] | None = None,
    ) -> None:
        """Append an event, also through an outage that the lease outlives, and charge what it tells was used.

        Raises:
            LeaseLost: the attempt may no longer act.
        """
        self._lease.check()
        claim = self._lease.claim
        self._tell(kind, data)
        name = uuid4().hex

        async def append() -> None:
            self._lease.check()
            await self._journal.append(
                *(claim.spec.id, claim.attempt, kind, data, line),
                name=name,
                used=used,
                token=claim.token,
            )

        await through_outage(append)

    def _tell(self, kind: EventType, data: dict[str, JsonValue]) -> None:
        if kind is EventType.MODEL_REPLY:
            self._replies += 1
        elif kind is EventType.TOOL_CALL:
            self._progress(f"turn {self._replies} · {data['tool']}")

    async def note_session_event(self, event: Event) -> None:
        """Append a complete ADK event."""
        raw = event.model_dump_json(exclude_none=True)
        data: dict[str, JsonValue] = _shown(event)
        if len(raw) > INLINE_EVENT_BYTES:
            data["event_blob"] = await self._blobs.put(raw.encode())
        else:
            data["event"] = json.loads(raw)
        await self.note(_kind(event), data, _line(event), _used(event))
        self._count_message(event)

    async def past(self) -> Past:
        """What earlier attempts left of the conversation that goes on.

        Raises:
            NotUnderstood: another release wrote something of it that this one cannot read.
        """
        past = Past()
        kept, lost = of_conversation(await self._journal.read(self._lease.claim.spec.id))
        for entry in kept:
            past.note(entry, await self._session_event(entry))
        past.lost = [event for entry in lost if (event := await self._session_event(entry))]
        for event in past.events:
            self._count_message(event)
        return past

    def _count_message(self, event: Event) -> None:
        self.messages_read = max(self.messages_read, message_number(event))

    async def messages(self, after: int) -> list[str]:
        """What was said to the job, without the first so many."""
        return await self._journal.messages(self._lease.claim.spec.id, after)

    async def last_sandbox(self) -> JournalEvent | None:
        """What the last attempt that came so far said of its sandbox."""
        entries = await self._journal.read(self._lease.claim.spec.id)
        return next(
            (entry for entry in reversed(entries) if entry.type is EventType.SANDBOX_READY), None
        )

    async def checkpoint(self) -> JournalEvent | None:
        """The newest checkpoint of the conversation."""
        kept, _ = of_conversation(await self._journal.read(self._lease.claim.spec.id))
        return next((entry for entry in reversed(kept) if entry.type is EventType.CHECKPOINT), None)

    async def _session_event(self, entry: JournalEvent) -> Event | None:
        raw = await self._raw_event(entry)
        try:
            return None if raw is None else Event.model_validate_json(raw)
        except ValidationError:
            why = f"The job's journal has a {entry.type} of a form that this release does not know."
            raise NotUnderstood(why) from None

    async def _raw_event(self, entry: JournalEvent) -> str | bytes | None:
        if "event" in entry.data:
            return json.dumps(entry.data["event"])
        if "event_blob" in entry.data:
            return await self._blobs.get(str(entry.data["event_blob"]))
        return None


class JournaledSessions(InMemorySessionService):
    """Keeps the session in memory for ADK and puts each of its events in the journal first."""

    def __init__(self, journal: AttemptJournal) -> None:
        super().__init__()
        self._journal = journal
        self._replaying = False

    async def append_event(self, session: Session, event: Event) -> Event:
        """Write ahead, then append: what a model or a tool answered is never asked for twice."""
        if (
            session.events and not event.partial
        ):  # another host's clock may be ahead; summaries go by times
            event.timestamp = later_than(session.events[-1].timestamp, event.timestamp)
        if not event.partial and not self._replaying:
            await self._journal.note_session_event(event)
        return await super().append_event(session, event)

    async def replay(self, session: Session, events: list[Event]) -> None:
        """Put the events of earlier attempts in place without writing them again."""
        self._replaying = True
        try:
            for event in events:
                await self.append_event(session, event)
        finally:
            self._replaying = False


class JournalPlugin(BasePlugin):
    """Writes what tools are about to do.

    Its appends are the fence as well; models' requests have a gate.
    """

    def __init__(self, journal: AttemptJournal) -> None:
        super().__init__(name="journal")
        self._journal = journal

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> None:
        """Note that a tool begins; its result is a session event."""
        data = {
            "id": tool_context.function_call_id,
            "tool": tool.name,
            "arguments": _short(tool_args),
        }
        await self._journal.note(EventType.TOOL_CALL, data, _call_line(tool.name, tool_args))

    async def after_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any
    ) -> None:
        """Note a new todo list."""
        del tool_context
        if (
            tool.name == "write_todos"
            and isinstance(result, dict)
            and result.get("status") == "success"
        ):
            await self._journal.note(EventType.TODOS, {"todos": tool_args.get("todos")})


def _used(event: Event) -> dict[str, float]:
    """What an event tells was consumed.

    A reply that the harness gave in a model's place was no call.
    """
    used = {name: value for name, value in vars(usage_of([event], price)).items() if value}
    if event.usage_metadata is None and event.model_version is None:
        used.pop("model_calls", None)
    return used


def _kind(event: Event) -> EventType:
    if confirmation_calls(event) or confirmation_answers(event):
        return EventType.SESSION_EVENT
    if event.get_function_responses():
        return EventType.TOOL_RESULT
    return EventType.MODEL_REPLY if is_reply(event) else EventType.SESSION_EVENT


def _shown(event: Event) -> dict[str, JsonValue]:
    """What a person wants to see of an event."""
    data: dict[str, JsonValue] = {"author": event.author}
    if text := text_of(event):
        data["text"] = text[:SHOWN_CHARACTERS]
    if calls := event.get_function_calls():
        data["calls"] = [{"id": call.id, "tool": call.name} for call in calls]
    if responses := event.get_function_responses():
        data["results"] = [
            {"id": answer.id, "tool": answer.name, "result": _short(answer.response or {})}
            for answer in responses
        ]
    if usage := event.usage_metadata:
        data["usage"] = {
            "input_tokens": usage.prompt_token_count or 0,
            "output_tokens": usage.candidates_token_count or 0,
            "cached_tokens": usage.cached_content_token_count or 0,
        }
    if event.error_code:
        data["error"] = event.error_code
    return data


def _short(values: dict[str, Any]) -> dict[str, JsonValue]:
    """The same mapping with long texts cut, as JSON."""
    return {str(name): _short_value(value) for name, value in values.items()}


def _short_value(value: Any) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "…"
    text = json.dumps(value, default=str)
    return json.loads(text) if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _line(event: Event) -> str | None:
    text = text_of(event)
    return one_line(text, LINE_CHARACTERS) if text and is_reply(event) else None


def _call_line(tool: str, arguments: dict[str, Any]) -> str:
    """A tool call in one line: the tool and its first argument."""
    first = next(iter(arguments.values()), "")
    return one_line(f"{tool} {first}" if isinstance(first, str) else tool, LINE_CHARACTERS)
