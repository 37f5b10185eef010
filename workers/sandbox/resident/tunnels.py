"""The worker's end of a resident's tunnels: a job's connections, or a process's input and output.

The frames are described in `workers.sandbox.inside.forward`. Their content is under a job's control
and is bounded here, whatever bounds the resident was supposed to keep.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.deep_agent import Execution, OutputSink

from ..errors import SandboxDied
from ..inside import frames
from ..inside.forward import (
    CHUNK_BYTES,
    MAX_TUNNELS,
    TAKEN_BYTES,
    WINDOW_BYTES,
)
from ..protocol import Process
from .client import ResidentClient

log = structlog.get_logger(__name__)

LINE_BYTES = 16 << 10
"""The longest text that `Tunnel.read_until` searches."""

_MOST_OPEN = 2 * MAX_TUNNELS
"""A tunnel that both sides close at the same time lives a little longer here than there."""


def parse_event(header: dict[str, Any]) -> tuple[str, int]:
    """Return the event of a tunnel's frame, and how many bytes it acknowledges.

    Raises:
        FrameError: it breaks the protocol.
    """
    event, taken = header.get("event"), header.get("bytes", 0)
    if type(event) is not str or type(taken) is not int:
        raise frames.FrameError("a tunnel's frame is malformed")
    return event, taken


class TunnelBroken(Exception):
    """The connection broke off; nothing can be sent on it."""


class Tunnel:
    """One connection: `read` receives from the process, `write` sends to it."""

    def __init__(
        self, number: int, send: Callable[[int, str, bytes, int], Awaitable[None]]
    ) -> None:
        self.number = number
        self._send = send
        self._incoming = asyncio.StreamReader(limit=LINE_BYTES)
        self._unread = 0
        """What has arrived and was not read. Together with what was read and not reported it is at
        most a window."""
        self._unreported = 0
        self._credit = WINDOW_BYTES
        self._has_credit = asyncio.Event()
        self._has_credit.set()
        self._has_ended = False

    async def read(self, most: int = CHUNK_BYTES) -> bytes:
        """Return the next bytes, at least one; empty when the process sends no more."""
        return await self._took(await self._incoming.read(most))

    async def read_until(self, end: bytes) -> bytes:
        """Return everything up to and including `end`.

        Raises:
            LimitOverrunError: it does not occur within `LINE_BYTES`.
            IncompleteReadError: the process sends no more.
        """
        return await self._took(await self._incoming.readuntil(end))

    async def write(self, data: bytes) -> None:
        """Send bytes to the process; waits while it does not read them.

        Raises:
            SandboxDied: the resident has ended.
        """
        rest = memoryview(data)
        while rest:
            await self._has_credit.wait()
            part = rest[: min(self._credit, CHUNK_BYTES)]
            rest = rest[len(part) :]
            self._credit -= len(part)
            if self._credit == 0:
                self._has_credit.clear()
            await self._send(self.number, "data", bytes(part), 0)

    async def end(self) -> None:
        """Send no more: the process reads the end after the rest."""
        await self._send(self.number, "end", b"", 0)

    async def _took(self, data: bytes) -> bytes:
        self._unread -= len(data)
        self._unreported += len(data)
        if self._unreported >= TAKEN_BYTES:
            taken, self._unreported = self._unreported, 0
            await self._send(self.number, "taken", b"", taken)
        return data

    def receive(self, event: str, payload: bytes, taken: int) -> None:
        """Handle a frame.

        Raises:
            FrameError: it breaks the protocol.
        """
        if event == "data" and payload and not self._has_ended:
            self._unread += len(payload)
            if self._unread + self._unreported > WINDOW_BYTES:
                raise frames.FrameError("a tunnel sent more than its window")
            self._incoming.feed_data(payload)
        elif event == "end" and not self._has_ended:
            self.break_off()
        elif event == "taken" and 0 < taken <= WINDOW_BYTES - self._credit:
            self._credit += taken
            self._has_credit.set()
        else:
            raise frames.FrameError("a tunnel's event is out of order")

    def break_off(self) -> None:
        """Expect nothing more from the process; what has arrived can still be read."""
        if not self._has_ended:
            self._has_ended = True
            self._incoming.feed_eof()


class Tunnels:
    """All tunnels of one sandbox; each is served by a task, which ends with it."""

    def __init__(self, client: ResidentClient, serve: Callable[[Tunnel], Awaitable[None]]) -> None:
        """Make the tunnels of a client.

        Args:
            client: the resident's client.
            serve: is called with each tunnel. When it returns, the tunnel is closed; when it
                raises, reset.
        """
        self._client = client
        self._serve = serve
        self._last_number = 0
        self._is_over = False
        self._open: dict[int, tuple[Tunnel, asyncio.Task[None]]] = {}
        self._turn = asyncio.Lock()
        """One tunnel's frame at a time: a command's request waits behind one frame, not behind
        all."""

    async def listen(self, port: int) -> int:
        """Begin to accept connections; see `ResidentClient.listen`. Returns the port."""
        return await self._client.listen(port, self.receive, self.abandon)

    async def close(self) -> None:
        """End every tunnel and wait for it."""
        self._is_over = True
        await cancel_and_wait(*(task for _, task in self._open.values()))

    def abandon(self) -> None:
        """End every tunnel without waiting: the sandbox is dead."""
        self._is_over = True
        for _, task in self._open.values():
            task.cancel()

    def receive(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        """Handle a frame; see `OnFrame`.

        Raises:
            FrameError: it breaks the protocol.
        """
        event, taken = parse_event(header)
        if event == "open":
            self._begin(number)
        elif number in self._open:
            tunnel, task = self._open[number]
            if event == "reset":
                task.cancel()
            else:
                tunnel.receive(event, payload, taken)

    def _begin(self, number: int) -> None:
        if number <= self._last_number or len(self._open) >= _MOST_OPEN:
            raise frames.FrameError("a tunnel that may not be opened")
        self._last_number = number
        if self._is_over:
            return
        tunnel = Tunnel(number, self._send)
        task = asyncio.create_task(self._run(tunnel))
        self._open[number] = (tunnel, task)
        task.add_done_callback(lambda _task: self._open.pop(number))

    async def _run(self, tunnel: Tunnel) -> None:
        event = "close"
        try:
            await self._serve(tunnel)
        except (TunnelBroken, OSError, EOFError, SandboxDied):
            event = "reset"
        except Exception as error:  # noqa: BLE001 - a fault in one must not end the others
            # A traceback could contain the data that was sent.
            log.error("tunnel failed", error=type(error).__name__)  # noqa: TRY400
            event = "reset"
        with contextlib.suppress(SandboxDied):
            await self._send(tunnel.number, event, b"", 0)

    async def _send(self, number: int, event: str, payload: bytes, taken: int) -> None:
        async with self._turn:
            await self._client.send_tunnel(number, event, payload, taken)


@contextlib.asynccontextmanager
async def resident_process(
    client: ResidentClient,
    max_error_bytes: int,
    run: Callable[[int, OutputSink], Coroutine[Any, Any, Execution]],
) -> AsyncIterator[Process]:
    """Run a process in a resident's sandbox while the context is open.

    Args:
        client: the resident's client.
        max_error_bytes: how much of its error output is kept.
        run: runs the command on the tunnel of that number, with a sink for its error output.

    Raises:
        SandboxFailure: the sandbox failed.
    """
    tunnel = Tunnel(0, client.send_tunnel)

    def on_frame(_number: int, header: dict[str, Any], payload: bytes) -> None:
        event, taken = parse_event(header)
        if event == "reset":
            tunnel.break_off()
        else:
            tunnel.receive(event, payload, taken)

    tunnel.number = client.begin_tunnel(on_frame)
    process = Process(tunnel, max_error_bytes)
    process.begin(run(tunnel.number, process.add_errors))
    try:
        yield process
    finally:
        try:
            await process.stop()
        finally:
            await client.close_tunnel(tunnel.number)
