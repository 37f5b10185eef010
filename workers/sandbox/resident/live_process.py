"""A live process as its caller holds it: bytes in, bytes out, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from orchestrator.deep_agent.backends.protocol import Execution, OutputSink
from workers.sandbox.inside import frames
from workers.sandbox.inside.forward import CHUNK_BYTES
from workers.sandbox.protocol import ProcessEnded
from workers.sandbox.resident.client import ResidentClient
from workers.sandbox.resident.tunnels import Tunnel

T = TypeVar("T")

DRAIN_SECONDS = 1.0
"""How long an ended process's output is awaited when something that it left behind holds it
open."""


class Channel(Protocol):
    """A process's standard input and output."""

    async def read(self) -> bytes:
        """The next output; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Pass on input; waits while the process does not take it."""
        ...


class LiveProcess:
    """See `Process`."""

    def __init__(self, channel: Channel, max_error_bytes: int) -> None:
        self._channel = channel
        self._errors = bytearray()
        self._max_error_bytes = max_error_bytes
        self._running: asyncio.Task[Execution]

    def begin(self, work: Coroutine[Any, Any, Execution]) -> None:
        """Start it: `work` runs the command to its end, which is at once when that is cancelled."""
        self._running = asyncio.create_task(work)

    async def send(self, data: bytes) -> None:
        """See `Process.send`."""
        if self._running.done():
            raise await self._end()
        await self._unless_ended(self._channel.write(data), 0.0)

    async def receive(self) -> bytes:
        """See `Process.receive`."""
        data = await self._unless_ended(self._channel.read(), DRAIN_SECONDS)
        if not data:
            raise await self._end()
        return data

    @property
    def error_output(self) -> bytes:
        """See `Process.error_output`."""
        if self._running.done() and not self._running.cancelled() and not self._running.exception():
            return self._running.result().error_output
        return bytes(self._errors)

    async def hear_errors(self, part: bytes) -> None:
        """Take error output that has come."""
        self._errors += part[: self._max_error_bytes - len(self._errors)]

    async def stop(self) -> None:
        """End the process and await that."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.exception()  # it was told to whom it concerned

    async def _unless_ended(self, step: Awaitable[T], patience_seconds: float) -> T:
        """A step's result; when the process ends, the step has so many seconds more."""
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
        """How it ended, once it has; SandboxFailure when the sandbox ended it."""
        return ProcessEnded(await asyncio.shield(self._running))


class SocketChannel:
    """The channel to a process of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """See `Channel.read`."""
        try:
            return await self._reader.read(CHUNK_BYTES)
        except ConnectionError:  # it ended with unread input
            return b""

    async def write(self, data: bytes) -> None:
        """See `Channel.write`."""
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Let go of it."""
        self._writer.close()


class _ProcessTunnel(Tunnel):
    """The tunnel to a process in a container."""

    def on_frame(self, header: dict[str, Any], payload: bytes) -> None:
        """Take in a frame.

        Raises:
            FrameError: it breaks the rules.
        """
        event, taken = header.get("event"), header.get("bytes", 0)
        if type(event) is not str or type(taken) is not int:
            raise frames.FrameError("a tunnel's frame is malformed")
        if event == "reset":
            self.break_off()
        else:
            self.receive(event, payload, taken)


@contextlib.asynccontextmanager
async def resident_process(
    client: ResidentClient,
    max_error_bytes: int,
    run: Callable[[int, OutputSink], Coroutine[Any, Any, Execution]],
) -> AsyncIterator[LiveProcess]:
    """A live process in a resident's sandbox.

    `run` has the resident run it on a tunnel of that number.
    """
    tunnel = _ProcessTunnel(0, client.send_tunnel)
    tunnel.number = client.begin_tunnel(tunnel.on_frame)
    process = LiveProcess(tunnel, max_error_bytes)
    process.begin(run(tunnel.number, process.hear_errors))
    try:
        yield process
    finally:
        try:
            await process.stop()
        finally:
            await client.close_tunnel(tunnel.number)
