"""Looks at all processes of the machine, which those who ask at the same time share.

A look reads some files of each process. When hundreds of commands are stopped at once, a look for
each of them would take minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Seen = TypeVar("Seen")


class SharedLooks(Generic[Seen]):
    """One kind of look, one at a time; each is followed by a rest of its own processor time.

    Looks without rests would take the interpreter from those who wait for them, and killed
    processes need a moment to vanish.

    Args:
        look: Looks; it blocks.
    """

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._next: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Seen]] = (
            WeakKeyDictionary()
        )
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._rests_until: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()

    async def look(self) -> Seen:
        """Return what a look sees that begins after this call; a cancelled caller ends no look."""
        loop = asyncio.get_running_loop()
        waiting = self._next.get(loop)
        if waiting is None:
            waiting = self._next[loop] = loop.create_task(self._look_in_turn(loop))
        return await asyncio.shield(waiting)

    async def _look_in_turn(self, loop: asyncio.AbstractEventLoop) -> Seen:
        async with self._turns.setdefault(loop, asyncio.Lock()):
            await asyncio.sleep(self._rests_until.get(loop, 0.0) - loop.time())
            del self._next[loop]  # who asks from now on may have started something since
            seen, seconds = await asyncio.to_thread(self._timed_look)
            self._rests_until[loop] = loop.time() + seconds
            return seen

    def _timed_look(self) -> tuple[Seen, float]:
        """Return what a look sees, and its processor time in seconds."""
        began = time.thread_time()
        seen = self._look()
        return seen, time.thread_time() - began
