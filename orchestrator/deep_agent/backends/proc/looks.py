"""Looks at all processes of the machine, which those who ask at the same time share.

A look reads some files of each process. When hundreds of commands are stopped at once, a look for
each of them would take minutes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from fanout.orchestrator.deep_agent.backends.proc.reading import (
    NEXT_STUCK_SECONDS,
    STUCK_SECONDS,
    EnvironmentReader,
    GivenUp,
)

Seen = TypeVar("Seen")


class SharedLooks(Generic[Seen]):
    """One kind of look, one at a time; each is followed by a rest of its own processor time.

    Looks without rests would take the interpreter from those who wait for them, and killed
    processes need a moment to vanish.

    Args:
        look: Looks; it blocks.
    """

    def __init__(self, look: Callable[[EnvironmentReader], Seen]) -> None:
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
            seen, seconds = await self._seen()
            self._rests_until[loop] = loop.time() + seconds
            return seen

    async def _seen(self) -> tuple[Seen, float]:
        """Return what a look sees, and its processor time in seconds.

        A look that is stuck at a process is begun again, and passes that one by. Each has a thread
        of its own that the end of the program does not wait for.
        """
        patience = STUCK_SECONDS
        while True:
            environments, answer = EnvironmentReader(), Future[tuple[Seen, float]]()
            answer.set_running_or_notify_cancel()
            arguments = environments, answer
            try:
                threading.Thread(target=self._answer, args=arguments, daemon=True).start()
            except RuntimeError:  # no process is left to this user: the look is to kill some
                self._answer(*arguments)
            waiting = asyncio.wrap_future(answer)
            while not (waiting.done() or environments.give_up_if_stuck(patience)):
                await asyncio.wait([waiting], timeout=patience)
            if waiting.done():
                return waiting.result()
            patience = NEXT_STUCK_SECONDS

    def _answer(self, environments: EnvironmentReader, answer: Future[tuple[Seen, float]]) -> None:
        began = time.thread_time()
        try:
            seen = self._look(environments)
        except GivenUp:
            return
        except Exception as error:  # noqa: BLE001 - raised where the look is awaited
            answer.set_exception(error)
        else:
            answer.set_result((seen, time.thread_time() - began))
