"""How many containers start at once: the processor limits starts, so more would delay each."""

from __future__ import annotations

import contextlib
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator


class StartGate:
    """A semaphore with two queues: what nobody waits for starts when nothing else wants to."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._urgent: deque[Future[None]] = deque()
        self._patient: deque[Future[None]] = deque()

    @property
    def is_awaited(self) -> bool:
        """Whether a start that a job waits for has to wait for others."""
        return bool(self._urgent)

    @contextlib.asynccontextmanager
    async def urgent(self) -> AsyncIterator[None]:
        """Enter for a start that a job waits for."""
        await self._enter(self._urgent)
        try:
            yield
        finally:
            self._leave()

    @contextlib.asynccontextmanager
    async def patient(self) -> AsyncIterator[None]:
        """Enter for a start that nobody waits for."""
        await self._enter(self._patient)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, queue: deque[Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        turn = get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave()  # its turn came together with the cancellation
            else:
                queue.remove(turn)
            raise

    def _leave(self) -> None:
        for queue in (self._urgent, self._patient):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
