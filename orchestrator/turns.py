"""Turns for expensive work: an owner's work waits for its own, without delaying that of others.

The owner of a worker's task is in the task's context, so that no argument has to pass it through
agents and tools.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from weakref import WeakKeyDictionary

current_owner: ContextVar[str] = ContextVar("current_owner", default="")
"""The owner for whom this task works; empty: a program with one owner."""


@contextmanager
def working_for(owner: str) -> Iterator[None]:
    """Set the owner of the tasks that are started in the context."""
    token = current_owner.set(owner)
    try:
        yield
    finally:
        current_owner.reset(token)


class TooManyWaiting(Exception):
    """An owner has too much work waiting for a turn."""


class OwnerTurns:
    """A semaphore that is fair to owners: the next free turn goes to each of them in rotation.

    Args:
        at_once: How many turns there are in one event loop.
        of_one_owner: How many of them one owner may have: fewer, so that one is left for others.
        waiting_of_one_owner: How many calls of one owner may wait; further ones are refused.
    """

    def __init__(self, *, at_once: int, of_one_owner: int, waiting_of_one_owner: int) -> None:
        self._at_once = at_once
        self._of_one_owner = of_one_owner
        self._waiting_of_one_owner = waiting_of_one_owner
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()

    @asynccontextmanager
    async def turn(self, owner: str | None = None) -> AsyncIterator[None]:
        """Wait for a turn, and hold it during the context.

        Args:
            owner: Whose work it is; None: `current_owner`.

        Raises:
            TooManyWaiting: Too much of the owner's work waits already.
        """
        queue = self._queues.setdefault(
            asyncio.get_running_loop(), _Queue(self._at_once, self._of_one_owner)
        )
        owner = current_owner.get() if owner is None else owner
        if queue.count_waiting(owner) >= self._waiting_of_one_owner:
            raise TooManyWaiting
        await queue.enter(owner)
        try:
            yield
        finally:
            queue.leave(owner)


class _Queue:
    """The turns of one event loop."""

    def __init__(self, at_once: int, of_one_owner: int) -> None:
        self._at_once = at_once
        self._of_one_owner = of_one_owner
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The waiting calls by owner; the owner whose turn is next comes first."""

    def count_waiting(self, owner: str) -> int:
        """Return how many calls of an owner wait."""
        return len(self._waiting.get(owner, ()))

    async def enter(self, owner: str) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(owner)  # it was given at the moment of the cancellation
            else:
                self._forget(owner, turn)
                self._give()
            raise

    def leave(self, owner: str) -> None:
        """Give a turn back."""
        self._running[owner] -= 1
        self._running += Counter()  # removes owners without turns
        self._give()

    def _give(self) -> None:
        """Give the free turns to waiting calls."""
        for owner in list(self._waiting):
            if self._running.total() >= self._at_once:
                return
            if self._running[owner] >= self._of_one_owner:
                continue
            turn = self._waiting[owner].popleft()
            self._waiting.move_to_end(owner)
            self._tidy(owner)
            if not turn.done():  # otherwise it was cancelled, and its caller is about to notice
                self._running[owner] += 1
                turn.set_result(None)

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        with suppress(KeyError, ValueError):
            self._waiting[owner].remove(turn)
            self._tidy(owner)

    def _tidy(self, owner: str) -> None:
        if not self._waiting[owner]:
            del self._waiting[owner]
