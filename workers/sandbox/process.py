"""A process that runs beside its caller: its input, its output and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

from fanout.orchestrator.deep_agent import BoundedOutput, Execution

T = TypeVar("T")

DRAIN_SECONDS = 1.0
"""How long to wait for the rest of an ended process's output while something that it left behind
holds it open."""

QUOTED_CHARACTERS = 500
"""How much of the error output the end of a process is reported with: a traceback's last lines."""


class ProcessEnded(EOFError):
    """A process has ended; the message has its exit code and the end of its error output."""

    def __init__(self, result: Execution) -> None:
        output = (result.error_output or result.output).decode(errors="replace").strip()
        quoted = f": {output[-QUOTED_CHARACTERS:]}" if output else ""
        super().__init__(f"it ended with exit code {result.exit_code}{quoted}")
        self.result = result


class Channel(Protocol):
    """A process's standard input and output."""

    async def read(self) -> bytes:
        """Return the next output; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Pass on input; waits while the process does not read it.

        Raises:
            OSError: the process does not read any more.
        """


class Process:
    """A running process. Both directions are bounded: the side that is ahead waits."""

    def __init__(self, channel: Channel, max_error_bytes: int) -> None:
        self._channel = channel
        self._errors = BoundedOutput.halves(max_error_bytes)
        self._running: asyncio.Task[Execution]

    def begin(self, work: Coroutine[Any, Any, Execution]) -> None:
        """Start it: `work` runs the command to its end, and ends it at once when cancelled."""
        self._running = asyncio.create_task(work)

    async def send(self, data: bytes) -> None:
        """Write to its standard input; waits while it does not read.

        Raises:
            ProcessEnded: it has ended.
            SandboxFailure: the sandbox failed.
        """
        if self._running.done():
            raise await self._end()
        await self._unless_ended(self._channel.write(data), 0.0)

    async def receive(self) -> bytes:
        """Return the next of its standard output, at least one byte.

        Raises:
            ProcessEnded: it has ended, and all of its output has been received.
            SandboxFailure: the sandbox failed.
        """
        data = await self._unless_ended(self._channel.read(), DRAIN_SECONDS)
        if not data:
            raise await self._end()
        return data

    @property
    def error_output(self) -> bytes:
        """Its error output so far; head and tail where it is longer than the limit."""
        if self._running.done() and not self._running.cancelled() and not self._running.exception():
            return self._running.result().error_output
        return self._errors.content()

    async def add_errors(self, part: bytes) -> None:
        """Collect error output."""
        self._errors.add(part)

    async def stop(self) -> None:
        """End the process and wait until it has ended."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.exception()  # retrieved, or asyncio would log it

    async def _unless_ended(self, step: Awaitable[T], patience_seconds: float) -> T:
        """Return a step's result; after the end of the process the step has so many seconds."""
        stepping = asyncio.ensure_future(step)
        try:
            await asyncio.wait({stepping, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if not stepping.done():
                await asyncio.wait({stepping}, timeout=patience_seconds)
            if stepping.done():
                with contextlib.suppress(OSError):  # it reads no more: it is ending
                    return stepping.result()
            raise await self._end()
        finally:
            stepping.cancel()

    async def _end(self) -> ProcessEnded:
        """Wait for the end and return it; SandboxFailure when the sandbox failed."""
        return ProcessEnded(await asyncio.shield(self._running))
