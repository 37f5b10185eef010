"""The conversation with a coding agent, as the journal has it.

Each prompt is a turn, which begins with the prompt and ends with the agent's stop. What an attempt
needs to know of earlier ones is in the metadata of the events (`TurnNote`): the session in which a
prompt was sent, the questions for permission, and what was used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.adk.events import Event
from google.genai import types
from pydantic import BaseModel, ConfigDict, JsonValue

from fanout.orchestrator.deep_agent import NUMBER_KEY, ModelUsage, text_of

from ...agent.history import History

KEY = "acp"
"""The key in the metadata of an event for what it says of a turn."""
LIMIT = "limit"
"""The stop of a turn that a limit of the job has ended."""


class Ask(BaseModel):
    """A question for permission about which a person decides."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Unique in the job."""
    sha256: str
    kind: str
    arguments: dict[str, JsonValue]


class TurnNote(BaseModel):
    """What an event says of a turn."""

    model_config = ConfigDict(frozen=True)  # another release may say more

    agent: str
    """The name of the definition: sessions of other agents mean nothing to this one."""
    turn: int
    """The number of the turn, from 1."""
    begins: bool = False
    session: str = ""
    """The session in which the turn's prompt is about to be sent."""
    files: str = ""
    """Which files the sandbox had then: the session is among them."""
    asked: Ask | None = None
    answered: str = ""
    """The id of a question whose answer the agent has been given."""
    stop: str = ""
    """How the turn ended, by the protocol's names; `limit` for a limit of the job."""
    limit: str = ""
    """The sentence about that limit."""
    home: str = ""
    """The blob of the agent's HOME after the turn."""
    reworks_schema: bool = False
    """Whether the turn asks for an answer that fits the schema."""
    used: dict[str, float] = {}
    """What was used since the event before, by the names of `Usage`."""
    cost_usd: float | None = None
    """What the session has cost so far, as the agent told it."""


@dataclass
class PromptTurn:
    """One prompt, and what became of it."""

    note: TurnNote
    text: str
    session: str = ""
    """The session in which the prompt was last sent; empty if it was not."""
    replies: list[str] = field(default_factory=list)
    """The texts of the agent since its last call."""
    stop: str = ""
    limit: str = ""

    @property
    def number(self) -> int:
        """The number of the turn, from 1."""
        return self.note.turn

    @property
    def reply(self) -> str:
        """The agent's last message."""
        return self.replies[-1] if self.replies else ""


class KeptSession(NamedTuple):
    """The session of an earlier job that a job continues."""

    session: str
    home: str
    """The blob of the HOME in which it is."""


class CodingConversation:
    """The turns of one job.

    Args:
        agent: The name of the agent's definition.
        history: The journal's events of the job.
    """

    def __init__(self, agent: str, history: History) -> None:
        self._agent = agent
        self.last: PromptTurn | None = None
        """The newest turn; None before the first."""
        self.events: list[Event] = []
        self.session, self.files = "", ""
        """The newest session, and the files of the sandbox in which it is."""
        self.session_cost_usd = 0.0
        """What that session has cost."""
        self.kept = _kept(history.earlier, agent)
        """The session of the job that this one continues; None if it was not kept."""
        self.asks: dict[str, Ask] = {}
        """The questions whose answers the agent has not been given, by id."""
        self.asked: dict[str, int] = {}
        """How often each call was asked for, by its digest."""
        self.used = _used(history.lost)
        """What the job has used; work that was lost counts as well."""
        for event in history.events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Add the next event of the journal."""
        self.events.append(event)
        note = _note(event)
        if note is not None:
            self._add(note, event)
        if self.last is not None and event.author != "user" and (text := text_of(event)).strip():
            self.last.replies.append(text)

    def _add(self, note: TurnNote, event: Event) -> None:
        if note.begins:
            self.last = PromptTurn(note, text_of(event))
        if note.session:
            if note.session != self.session or note.files != self.files:
                self.session_cost_usd = 0.0
            self.session, self.files = note.session, note.files
            if self.last is not None:
                self.last.session = note.session
        if note.asked is not None:
            self.asks[note.asked.id] = note.asked
            self.asked[note.asked.sha256] = self.asked.get(note.asked.sha256, 0) + 1
        if note.answered:
            self.asks.pop(note.answered, None)
        if note.cost_usd is not None:
            self.session_cost_usd = note.cost_usd
        if note.stop and self.last is not None:
            self.last.stop, self.last.limit = note.stop, note.limit
            self.asks.clear()
        self.used = self.used.plus(_usage(note.used))

    def begun(self, text: str, messages_read: int, *, reworks_schema: bool = False) -> Event:
        """Return the event of a prompt that is about to be sent.

        Args:
            text: The prompt.
            messages_read: How many messages to the job it contains, with those before it.
            reworks_schema: Whether it asks for an answer that fits the schema.
        """
        number = self.last.number + 1 if self.last else 1
        note = TurnNote(agent=self._agent, turn=number, begins=True, reworks_schema=reworks_schema)
        content = types.Content(role="user", parts=[types.Part(text=text)])
        event = Event(author="user", content=content, custom_metadata={NUMBER_KEY: messages_read})
        return with_note(event, note)

    def said(self, content: types.Content | None = None, **fields: Any) -> Event:
        """Return an event of the agent in the newest turn.

        Args:
            content: What it did or said; None for bookkeeping.
            fields: Those of its note.
        """
        number = self.last.number if self.last else 0
        note = TurnNote(agent=self._agent, turn=number, **fields)
        return with_note(Event(author=self._agent, content=content), note)


def _kept(events: Iterable[Event], agent: str) -> KeptSession | None:
    """Return the session of an earlier conversation, if nothing followed in another one."""
    session, kept = "", None
    for note in filter(None, map(_note, events)):
        session = note.session or session
        is_whole = note.agent == agent and note.stop and note.home and session
        kept = KeptSession(session, note.home) if is_whole else None
    return kept


def with_note(event: Event, note: TurnNote) -> Event:
    """Put a note into the metadata of an event, and return the event."""
    said = note.model_dump(exclude_defaults=True)
    event.custom_metadata = {**(event.custom_metadata or {}), KEY: said}
    return event


def with_used(event: Event, used: ModelUsage) -> dict[str, float]:
    """Put what was used into the note of an event; return it as it is charged."""
    fields = {name: value for name, value in vars(used).items() if value}
    if fields:
        note = _note(event)
        assert note is not None  # noqa: S101 - made by `said`
        with_note(event, note.model_copy(update={"used": fields}))
    return fields


def _note(event: Event) -> TurnNote | None:
    said = (event.custom_metadata or {}).get(KEY)
    return TurnNote.model_validate(said) if isinstance(said, dict) else None


def _usage(fields: dict[str, float]) -> ModelUsage:
    counts = {name: int(value) for name, value in fields.items() if name != "cost_usd"}
    return ModelUsage(**counts, cost_usd=fields.get("cost_usd"))


def _used(events: Iterable[Event]) -> ModelUsage:
    used = ModelUsage()
    for event in events:
        if (note := _note(event)) is not None:
            used = used.plus(_usage(note.used))
    return used
