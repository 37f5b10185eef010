"""The steps of a coding agent, written to the journal in the form of every agent's steps.

The pieces of a message are joined until something else follows. A call is written when its
arguments are known, its result when it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from google.adk.events import Event
from google.genai import types
from pydantic import JsonValue

from fanout.orchestrator.deep_agent import ModelUsage
from fanout.orchestrator.jobs.failures import AgentFailed
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.shortening import one_line

from ...agent.session_journal import LINE_CHARACTERS, LOG_SECONDS, AttemptJournal, LiveLog
from .conversation import CodingConversation, with_used
from .updates import OTHER, Chunk, Plan, SessionCost, ToolUse, Update

MAX_MESSAGE_CHARACTERS = 200_000
"""The longest message: some fifty thousand tokens, more than another model would read of it."""
MAX_THOUGHT_CHARACTERS = 20_000
"""The longest thought between two steps: only people read it."""
MAX_OPEN_CALLS = 1_000
"""The calls that may run at once; agents run a dozen."""
MAX_STEPS = 20_000
"""The steps of one attempt that are written: hundreds of hours of an agent at work."""
CUT = "\n… (cut)"
"""The end of a text that was too long."""
ENDED = ("completed", "failed", "cancelled")
"""The states of a call that has ended."""

Used = Callable[[], ModelUsage]
"""Returns what a meter has counted since it was last asked."""


class Joined:
    """Pieces of a text, joined up to a length."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._pieces: list[str] = []
        self._shown = 0

    def add(self, text: str) -> None:
        """Add a piece."""
        if self._left > 0 and text:
            kept = text[: self._left]
            self._left -= len(kept)
            self._pieces.append(kept if len(kept) == len(text) else kept + CUT)

    def take(self) -> str:
        """Return the text, and begin another one."""
        text = "".join(self._pieces)
        self._pieces, self._left, self._shown = [], self._most, 0
        return text

    def unseen(self) -> str:
        """Return what was added since this was last asked."""
        pieces, self._shown = self._pieces[self._shown :], len(self._pieces)
        return "".join(pieces)


class StepWriter:
    """Writes what one agent does to the journal, in order.

    Args:
        conversation: Gets each event as well.
        journal: The attempt's journal.
        agent: The name of the agent.
        metered: What a meter has counted since it was last asked; None: there is no meter, and each
            reply that is seen counts as a request to a model.
    """

    def __init__(
        self,
        conversation: CodingConversation,
        journal: AttemptJournal,
        agent: str,
        metered: Used | None = None,
    ) -> None:
        self._conversation = conversation
        self._journal = journal
        self._agent = agent
        self._metered = metered
        self._live = LiveLog(journal, agent)
        self._live_at = 0.0
        self._text = Joined(MAX_MESSAGE_CHARACTERS)
        self._thought = Joined(MAX_THOUGHT_CHARACTERS)
        self._calls: dict[str, ToolUse] = {}
        """The open calls, by the agent's ids."""
        self._written: dict[str, str] = {}
        """The ids in the journal of those that are written."""
        self._ids = {
            str(call.id) for event in conversation.events for call in event.get_function_calls()
        }
        self._plan: Plan | None = None
        self._is_new_reply = True
        self._count = 0
        self.session_cost: float | None = None
        """What the session has cost so far, as the agent told it last."""

    @property
    def has_open_calls(self) -> bool:
        """Whether calls are running that were written."""
        return bool(self._written)

    async def asks(self, call: ToolUse) -> ToolUse:
        """Write an open call about which the agent asks; return what is known of it.

        Args:
            call: What the question says of it.
        """
        await self.add(replace(call, output=None))  # some agents say nothing of a call before
        await self.write_call(call.id)
        return self._calls.get(call.id, call)

    async def add(self, update: Update) -> None:
        """Write an update, or keep it until what belongs to it has come.

        Raises:
            AgentFailed: There are too many steps.
            JobFailure: It cannot be written; see `AttemptJournal`.
        """
        match update:
            case Chunk():
                await self._add_chunk(update)
            case ToolUse():
                await self._add_call(update)
            case Plan():
                await self._add_plan(update)
            case SessionCost():
                self.session_cost = update.amount_usd

    async def _add_chunk(self, chunk: Chunk) -> None:
        await self._write_calls()
        (self._thought if chunk.is_thought else self._text).add(chunk.text)
        now = time.monotonic()
        if not chunk.is_thought and now - self._live_at >= LOG_SECONDS:
            self._live_at = now
            content = types.Content(role="model", parts=[types.Part(text=self._text.unseen())])
            await self._live.add(Event(author=self._agent, content=content, partial=True))

    async def _add_call(self, update: ToolUse) -> None:
        before = self._calls.get(update.id)
        if before is None and len(self._calls) >= MAX_OPEN_CALLS:
            raise AgentFailed(f"The coding agent has more than {MAX_OPEN_CALLS:,} open calls.")
        call = self._calls[update.id] = update if before is None else before.updated(update)
        if call.arguments is not None or call.status not in {None, "pending"}:
            await self.write_call(update.id)
        if call.status in ENDED:
            await self._write_result(call)

    async def _add_plan(self, plan: Plan) -> None:
        if plan == self._plan:
            return
        self._plan = plan
        self.count_step()
        await self._journal.note(EventType.TODOS, {"todos": [dict(todo) for todo in plan.todos]})

    async def _write_calls(self) -> None:
        for call_id in [one for one in self._calls if one not in self._written]:
            await self.write_call(call_id)

    async def write_call(self, call_id: str) -> None:
        """Write an open call, unless it is written."""
        call = self._calls.get(call_id)
        if call is None or call_id in self._written:
            return
        number = self._written[call_id] = self._unused_id(call_id)
        tool, arguments = call.kind or OTHER, _arguments(call)
        part = types.FunctionCall(id=number, name=tool, args=dict(arguments))
        await self._write_reply([types.Part(function_call=part)], ModelUsage(tool_calls=1))
        line = one_line(f"{tool} {call.title or ''}", LINE_CHARACTERS)
        data: dict[str, JsonValue] = {"id": number, "tool": tool, "arguments": arguments}
        await self._journal.note(EventType.TOOL_CALL, data, line)

    def _unused_id(self, call_id: str) -> str:
        """Return an id that no other call of the job has: sessions count from their beginning."""
        number, name = 1, call_id or "call"
        while name in self._ids:
            number += 1
            name = f"{call_id or 'call'}#{number}"
        self._ids.add(name)
        return name

    async def _write_result(self, call: ToolUse) -> None:
        number = self._written.pop(call.id)
        del self._calls[call.id]
        status = "success" if call.status == "completed" else "error"
        response = {"status": status, "output": call.output or ""}
        answer = types.FunctionResponse(id=number, name=call.kind or OTHER, response=response)
        content = types.Content(role="user", parts=[types.Part(function_response=answer)])
        self._is_new_reply = True
        await self.write(self._conversation.said(content), ModelUsage())

    async def _write_reply(self, parts: list[types.Part], used: ModelUsage) -> None:
        """Write what the agent says and calls, with the text that came before."""
        event = self._conversation.said(self._content(parts))
        await self.write(event, self._with_call(used))

    def _content(self, parts: list[types.Part]) -> types.Content | None:
        """Return the joined text with these parts; None for nothing."""
        thought, text = self._thought.take(), self._text.take()
        joined = [
            *([types.Part(text=thought, thought=True)] if thought.strip() else []),
            *([types.Part(text=text)] if text.strip() else []),
            *parts,
        ]
        return types.Content(role="model", parts=joined) if joined else None

    def _with_call(self, used: ModelUsage) -> ModelUsage:
        """Count a request to the model for the first step after its last results."""
        if self._metered is None and self._is_new_reply:
            used = replace(used, model_calls=1)
        self._is_new_reply = False
        return used

    async def end(self, used: ModelUsage, **fields: object) -> None:
        """Write what has come and was not written, and the end of the turn.

        Args:
            used: What the agent says that the turn has used.
            fields: Those of the turn's last note.
        """
        await self._write_calls()
        for call in list(self._calls.values()):
            await self._write_result(replace(call, status="cancelled"))
        content = self._content([])
        if content is not None:
            used = self._with_call(used) if not used.model_calls else used
        event = self._conversation.said(content, cost_usd=self.session_cost, **fields)
        if used.tokens:
            event.usage_metadata = types.GenerateContentResponseUsageMetadata(
                prompt_token_count=used.input_tokens,
                candidates_token_count=used.output_tokens,
                cached_content_token_count=used.cached_tokens,
            )
        self._is_new_reply = True
        await self.write(event, used)

    async def flush(self, why: str) -> None:
        """Write what has come and was not written, of a turn that has not ended.

        Args:
            why: Why calls have no result, for who reads it.
        """
        await self._write_calls()
        for call in list(self._calls.values()):
            await self._write_result(replace(call, status="cancelled", output=call.output or why))
        if (content := self._content([])) is not None:
            await self.write(self._conversation.said(content), self._with_call(ModelUsage()))

    async def write(self, event: Event, used: ModelUsage) -> None:
        """Append an event to the journal, and charge what was used.

        Raises:
            AgentFailed: There are too many steps.
            JobFailure: It cannot be written; see `AttemptJournal`.
        """
        self.count_step()
        if self._metered is not None:
            used = used.plus(self._metered())
        fields = with_used(event, used)
        if fields:
            event.model_version = self._agent
        await self._journal.note_session_event(event, fields)
        await self._live.add(event)
        self._conversation.add(event)

    def count_step(self) -> None:
        """Count an entry of the journal.

        Raises:
            AgentFailed: There are too many.
        """
        self._count += 1
        if self._count > MAX_STEPS:
            raise AgentFailed(f"The coding agent made more than {MAX_STEPS:,} steps.")


def _arguments(call: ToolUse) -> dict[str, JsonValue]:
    return {**({"title": call.title} if call.title else {}), **(call.arguments or {})}
