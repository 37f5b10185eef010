"""The conversation with a remote agent, as the journal has it.

Each message to the agent is a turn of three events: it is about to be sent, the agent has taken it
as a task, and the agent's work has stopped. So an attempt knows how far an earlier one came: it
sends a message again, by the same id, only if no task is known for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from google.adk.events import Event
from google.genai import types
from pydantic import BaseModel, ConfigDict, JsonValue

from fanout.orchestrator.deep_agent import NUMBER_KEY, text_of

from ...agent.history import History

KEY = "a2a"
"""The key in the metadata of an event for the data of a turn."""

State = Literal["completed", "failed", "rejected", "canceled", "input_required", "auth_required"]
"""How a turn ended, by the protocol's names of a task's states."""


class Note(BaseModel):
    """What an event says of a turn."""

    model_config = ConfigDict(frozen=True)  # another release may say more

    agent: str
    """The name of the definition: contexts of other agents mean nothing to this one."""
    turn: int
    """The number of the turn, from 1."""
    message: str
    """The id of the message."""
    task: str = ""
    """The agent's task; before it is taken, the one to which the message belongs."""
    context: str = ""
    """The agent's conversation."""
    is_taken: bool = False
    state: State | None = None
    output: JsonValue = None
    """The structured part of the reply that is its answer."""
    has_files: bool = False
    """Whether the reply brought files."""
    asked_by: str = ""
    """The id of the agent's message that asks for input."""
    confirmations: tuple[str, ...] = ()
    """The ids of the calls that it asks to confirm; a text would not confirm them."""
    is_confirmed: bool | None = None
    """The person's decision about the calls of the question before; None: it is a text."""

    @property
    def progress(self) -> int:
        """How far the turn is: 0 begun, 1 taken, 2 ended."""
        return 2 if self.state is not None else int(self.is_taken)


@dataclass(frozen=True)
class Turn:
    """One message to the agent, and what became of it."""

    note: Note
    text: str = ""
    reply: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the agent's work has stopped."""
        return self.note.state is not None

    @property
    def asks(self) -> bool:
        """Whether the agent waits for a person."""
        return self.note.state in {"input_required", "auth_required"}


class RemoteConversation:
    """The turns of one job.

    Args:
        agent: The name of the agent's definition.
        job_id: The job.
        history: The journal's events of the job, and of the job that it continues.
    """

    def __init__(self, agent: str, job_id: str, history: History) -> None:
        self._agent = agent
        self._job_id = job_id
        self._turns: dict[int, Turn] = {}
        # What an agent elsewhere did does not depend on the files of this host.
        for event in (*history.lost, *history.events):
            self.add(event)
        kept = {note.turn for note in _notes(history.events) if note.state}
        self.without_files = [
            turn
            for turn in self._turns.values()
            if turn.note.has_files and turn.note.turn not in kept
        ]
        """The turns whose files were lost with their host."""
        earlier = [note.context for note in _notes(history.earlier) if note.agent == agent]
        self._context = next((context for context in reversed(earlier) if context), "")

    @property
    def last(self) -> Turn | None:
        """The newest turn; None before the first."""
        return self._turns[max(self._turns)] if self._turns else None

    @property
    def task(self) -> str:
        """The agent's newest task that may be at work; empty if there is none."""
        last = self.last
        return last.note.task if last and (not last.has_ended or last.asks) else ""

    def add(self, event: Event) -> None:
        """Add the next event of the journal; one that says nothing of a turn is ignored."""
        for note in _notes([event]):
            turn = self._turns.get(note.turn, Turn(note))
            if note.progress >= turn.note.progress:
                turn = replace(turn, note=note)
            if note.progress == 0:
                turn = replace(turn, text=text_of(event))
            if note.state:
                turn = replace(turn, reply=text_of(event))
            self._turns[note.turn] = turn

    def begun(self, text: str, messages_read: int, *, is_confirmed: bool | None = None) -> Event:
        """Return the event of a message that is about to be sent.

        Args:
            text: The message.
            messages_read: How many messages to the job it contains, with those before it.
            is_confirmed: A person's decision about the calls that the agent asks to confirm.
        """
        last = self.last
        number = last.note.turn + 1 if last else 1
        note = Note(
            agent=self._agent,
            turn=number,
            message=f"{self._job_id}-{number}",
            task=last.note.task if last and last.asks else "",
            context=last.note.context if last else self._context,
            asked_by=last.note.asked_by if last else "",
            confirmations=last.note.confirmations if last else (),
            is_confirmed=is_confirmed,
        )
        metadata = {KEY: note.model_dump(exclude_defaults=True), NUMBER_KEY: messages_read}
        content = types.Content(role="user", parts=[types.Part(text=text)])
        return Event(author="user", content=content, custom_metadata=metadata)

    def taken(self, turn: Turn, task: str, context: str) -> Event:
        """Return the event of a message that the agent has taken as a task."""
        update = {"task": task, "context": context or turn.note.context, "is_taken": True}
        return self._event(turn.note.model_copy(update=update), None)

    def ended(self, turn: Turn, reply: str, **said: Any) -> Event:
        """Return the event of the end of a turn.

        Args:
            turn: The turn.
            reply: What the agent said.
            said: Fields of the note.
        """
        note = Note.model_validate({**turn.note.model_dump(), **said, "is_taken": True})
        return self._event(note, reply)

    def _event(self, note: Note, text: str | None) -> Event:
        content = None
        if text is not None:
            content = types.Content(role="model", parts=[types.Part(text=text)])
        metadata = {KEY: note.model_dump(exclude_defaults=True)}
        return Event(author=self._agent, content=content, custom_metadata=metadata)


def _notes(events: Iterable[Event]) -> list[Note]:
    said = ((event.custom_metadata or {}).get(KEY) for event in events)
    return [Note.model_validate(one) for one in said if isinstance(one, dict)]
