"""The gate of a worker's agents: they take turns, so that those in front finish soon.

All agents of a process share one processor. When many want it at once, because their models'
replies arrived together, each would otherwise get a small part of it, and all would be done at the
same late moment, turn after turn. First come, first served, the last one is done no later, the
others are done before it, and their next replies arrive one after the other. That holds for a turn
as a whole: whose tool has returned goes before those whose replies have arrived since.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator
from typing import Any

from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin

STARTS_AT_ONCE = 4
"""Agents on their way to their first request: more would not be sooner there, and with a thousand
no lease would be renewed for twenty seconds. Some of them wait for Redis while one works."""
LONGEST_START_SECONDS = 0.5
"""After which an agent is not counted any more: it waits for something else, such as a command that
verifies what it merges, or a server of its tools."""
TURNS_AT_ONCE = 4
"""Agents between their model's reply and their next request; as above."""
LONGEST_TURN_SECONDS = 0.04
"""The longest turn, for the same reason: its tool takes longer. So a hundred turns with long tools
can begin in a second, which is what one processor has time for."""


class AgentGate:
    """Lets a bounded number of a worker's agents start, and work on a reply, at once."""

    def __init__(self) -> None:
        self._starts = _Slots(STARTS_AT_ONCE)
        self._turns = _Slots(TURNS_AT_ONCE)

    @contextlib.asynccontextmanager
    async def turns(self) -> AsyncIterator[Turns]:
        """Wait until an agent may start, and yield its turns; the context is its whole run."""
        start = _Slot(self._starts, LONGEST_START_SECONDS)
        turns = Turns(start, _Slot(self._turns, LONGEST_TURN_SECONDS))
        await start.take(asyncio.get_running_loop().time())
        try:
            yield turns
        finally:
            turns.end()


class Turns:
    """The turns of one agent, of which its start is the first.

    Args:
        start: The slot of its start.
        turn: The slot of a later turn.
    """

    def __init__(self, start: _Slot, turn: _Slot) -> None:
        self._start = start
        self._turn = turn
        self._begun_at = 0.0

    async def begin(self) -> None:
        """Wait for a turn, unless it is the agent's already."""
        self._begun_at = asyncio.get_running_loop().time()
        await self._turn.take(self._begun_at)

    async def go_on(self) -> None:
        """Wait to go on with a turn that lasts so long that others have taken theirs."""
        await self._turn.take(self._begun_at)

    def end(self) -> None:
        """Leave the turn to others."""
        self._start.give_back()
        self._turn.give_back()


class TurnsPlugin(BasePlugin):
    """An ADK plugin: an agent waits for its turn when its model has replied or a tool has returned.

    Args:
        turns: The agent's turns; who sends its next request ends one.
    """

    def __init__(self, turns: Turns) -> None:
        super().__init__(name="turns")
        self._turns = turns

    async def after_model_callback(
        self,
        *,
        callback_context: Any,  # noqa: ARG002 - ADK's signature
        llm_response: LlmResponse,
    ) -> None:
        """Wait when a reply is complete."""
        if not llm_response.partial:
            await self._turns.begin()

    async def after_tool_callback(self, **_: Any) -> None:
        """Wait if the tool took longer than a turn may last."""
        await self._turns.go_on()


class _Slots:
    """A number of slots; a free one goes to whoever has been in its turn for longest."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap, by the time of each and then in the order in which they came."""
        self._came = itertools.count()

    async def acquire(self, since: float) -> None:
        """Wait for a slot.

        Args:
            since: The time of the loop that decides who is first.
        """
        if self._free:
            self._free -= 1
            return
        given = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (since, next(self._came), given))
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():  # it was given in the same moment
                self.release()
            raise

    def release(self) -> None:
        """Give a slot to the first who waits, or keep it free."""
        while self._waiting:
            _, _, given = heapq.heappop(self._waiting)
            if not given.done():
                given.set_result(None)
                return
        self._free += 1


class _Slot:
    """One of several slots that an agent takes for a bounded time."""

    def __init__(self, slots: _Slots, longest_seconds: float) -> None:
        self._slots = slots
        self._longest_seconds = longest_seconds
        self._late: asyncio.TimerHandle | None = None
        """Gives it back; None: it is not taken."""

    async def take(self, since: float) -> None:
        if self._late is not None:
            return
        await self._slots.acquire(since)
        if self._late is not None:  # taken meanwhile: an agent may call several tools at once
            self._slots.release()
            return
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(self._longest_seconds, self.give_back)

    def give_back(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
            self._slots.release()
