"""The client of a resident: sends requests over a stream and receives the replies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Protocol

from orchestrator.cancellation import cancel_and_wait
from orchestrator.jobs.failures import SandboxFailure
from workers.sandbox.errors import SandboxDied
from workers.sandbox.inside import frames

DEFAULT_ANSWER_SECONDS = 120.0
"""How long a request may remain unanswered before the sandbox counts as dead."""

MAX_QUEUED_FRAMES = 100_000
"""Of one request. A command that writes byte by byte makes a small frame of each byte; a hostile
stream must not fill the memory."""

_Frame = tuple[dict[str, Any], bytes]
OnFrame = Callable[[dict[str, Any], bytes], None]
"""Receives a tunnel's frame, header and payload; see `workers.sandbox.inside.forward`. Must not
wait; raises FrameError when the frame breaks the protocol."""


class ByteStream(Protocol):
    """Both directions of a connection; every method may raise OSError."""

    async def read(self) -> bytes:
        """Return what has arrived, at least one byte; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send everything; waits while the peer is behind."""

    async def close(self) -> None:
        """Close both directions."""


class OperationFailed(SandboxFailure):
    """The resident rejected or failed an operation; `kind` is the type of the failure."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ResidentClient:
    """Sends requests to a resident, any number of them at once.

    After the end of the stream, a malformed frame or a missing reply, every pending and every later
    request raises `SandboxDied`.
    """

    def __init__(self, stream: ByteStream, *, ttl_seconds: float | None = None) -> None:
        """Make a client; `start` begins to read.

        Args:
            stream: the connection to the resident.
            ttl_seconds: the resident's `FANOUT_RESIDENT_TTL`, if set; it is pinged in time.
        """
        self._stream = stream
        self._ttl_seconds = ttl_seconds
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Queue[_Frame | SandboxDied]] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)
        self._ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._on_frame: OnFrame | None = None
        self._on_death: Callable[[], None] = lambda: None
        self._own_tunnels: dict[int, OnFrame] = {}
        self._death: str | None = None

    @property
    def is_dead(self) -> bool:
        """Whether every further request fails."""
        return self._death is not None

    async def start(self, timeout_seconds: float) -> None:
        """Wait until the resident is ready.

        Raises:
            SandboxDied: it ended, or was not ready in time.
        """
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._transmit())]
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_seconds)
        except TimeoutError:
            self.mark_dead(f"the sandbox did not start within {timeout_seconds:g} s")
        self._raise_if_dead()
        if self._ttl_seconds is not None:
            self._tasks.append(asyncio.create_task(self._keep_alive(self._ttl_seconds)))

    async def close(self) -> None:
        """Close the stream, which ends the resident and all processes of its sandbox."""
        self.mark_dead("the sandbox is closed")
        await cancel_and_wait(*self._tasks)
        with contextlib.suppress(OSError):
            await self._stream.close()

    def mark_dead(self, reason: str) -> None:
        """Fail every pending and every later request with `SandboxDied(reason)`.

        Only the first reason is kept.
        """
        if self._death is None:
            self._death = reason
        for answers in self._pending.values():
            answers.put_nowait(SandboxDied(self._death))
        self._on_death()
        self._ready.set()

    async def listen(self, port: int, on_frame: OnFrame, on_death: Callable[[], None]) -> int:
        """Make the resident listen on a loopback port; each connection to it is a tunnel.

        Args:
            port: the port; 0 lets the system choose one.
            on_frame: receives the frames of these tunnels.
            on_death: is called when the sandbox is dead.

        Returns:
            The port.

        Raises:
            OSError: the port is not available.
            SandboxFailure: see `request`.
        """
        self._on_frame, self._on_death = on_frame, on_death
        result, _ = await self.request("listen", {"port": port})
        return int(result["port"])

    def begin_tunnel(self, receive: OnFrame) -> int:
        """Return a new number for a tunnel to a process that is about to be started.

        Its frames are passed to `receive`.
        """
        number = -next(self._numbers)
        self._own_tunnels[number] = receive
        return number

    async def close_tunnel(self, number: int) -> None:
        """Close a tunnel that `begin_tunnel` opened."""
        del self._own_tunnels[number]
        with contextlib.suppress(SandboxDied):
            await self.send_tunnel(number, "close")

    async def send_tunnel(
        self, number: int, event: str, payload: bytes = b"", taken: int = 0
    ) -> None:
        """Send a frame of a tunnel; waits while the resident is behind.

        Args:
            number: the tunnel's.
            event: see `workers.sandbox.inside.forward`.
            payload: the data.
            taken: the number of bytes that a `taken` event acknowledges.

        Raises:
            SandboxDied: the resident has ended.
        """
        self._raise_if_dead()
        header = {"op": "tunnel", "target": number, "event": event, "bytes": taken}
        await self._enqueue(_pack(header, payload))

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        on_chunk: Callable[[bytes], Awaitable[None]] | None = None,
        *,
        timeout_seconds: float | None = DEFAULT_ANSWER_SECONDS,
        stop_seconds: float = 0.0,
    ) -> tuple[dict[str, Any], bytes]:
        """Carry out an operation; return its result and its payload.

        Args:
            op: the operation's name.
            arguments: its arguments.
            payload: at most `frames.MAX_PAYLOAD_BYTES`; larger contents are sent with `upload`.
            on_chunk: receives the parts that precede the reply, in order; the resident waits for
                it.
            timeout_seconds: the longest silence about this request before the sandbox counts as
                dead; None waits for ever.
            stop_seconds: how long a cancelled caller waits for the end of the operation.

        Raises:
            OSError: the operation met an error of the file system; of the fitting subclass.
            OperationFailed: the operation was rejected or failed.
            SandboxDied: the resident has ended, or does so meanwhile.
        """
        self._raise_if_dead()
        number = next(self._numbers)
        frame = _pack({"id": number, "op": op, "arguments": arguments}, payload)
        answers = self._pending[number] = asyncio.Queue()
        replied = False
        try:
            await self._enqueue(frame)
            while not replied:
                header, data = await self._next_frame(answers, timeout_seconds)
                replied = "more" not in header
                if not replied:
                    if on_chunk is not None:
                        await on_chunk(data)
                    await self._enqueue(_pack({"op": "credit", "target": number}))
        finally:
            if not (replied or self.is_dead):
                await self._abandon(number, answers, stop_seconds)
            del self._pending[number]
        return _result(header), data

    async def upload(self, source: bytes | AsyncIterable[bytes], directory: str) -> str:
        """Send a large content into a temporary file in `directory`.

        Returns:
            The argument `upload` for the operation that uses it.

        Raises:
            OSError: the file cannot be written.
            SandboxFailure: see `request`.
        """
        name = f"{next(self._numbers)}"
        try:
            async for chunk in _chunks(source):
                await self.request("upload", {"id": name, "directory": directory}, chunk)
        except BaseException:
            with contextlib.suppress(Exception):
                await self.request("upload", {"id": name, "abort": True}, timeout_seconds=1.0)
            raise
        return name

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise SandboxDied(self._death)

    async def _enqueue(self, frame: bytes) -> None:
        """Queue a frame; it is sent whole even when the caller is cancelled."""
        await self._outgoing.put(frame)
        self._raise_if_dead()

    async def _next_frame(
        self, answers: asyncio.Queue[_Frame | SandboxDied], timeout_seconds: float | None
    ) -> _Frame:
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await answers.get()
        except TimeoutError:
            self.mark_dead(f"the sandbox did not answer within {timeout_seconds:g} s")
            answer = await answers.get()
        if isinstance(answer, SandboxDied):
            raise answer
        return answer

    async def _abandon(
        self, number: int, answers: asyncio.Queue[_Frame | SandboxDied], stop_seconds: float
    ) -> None:
        """Cancel a request in the resident; wait for its end if there is time."""
        with contextlib.suppress(TimeoutError, SandboxFailure):
            async with asyncio.timeout(max(stop_seconds, 1.0)):
                await self._enqueue(_pack({"op": "cancel", "target": number}))
                while stop_seconds > 0 and "more" in (await self._next_frame(answers, None))[0]:
                    pass

    async def _receive(self) -> None:
        reader = frames.FrameReader()
        try:
            while data := await self._stream.read():
                for header, payload in reader.feed(data):
                    self._dispatch(header, payload)
            self.mark_dead("the sandbox has ended: its stream ended")
        except (OSError, EOFError) as error:
            self.mark_dead(f"the sandbox has ended: its stream broke ({type(error).__name__})")
        except frames.FrameError:
            self.mark_dead("the sandbox sent something that is not a reply")

    def _dispatch(self, header: dict[str, Any], payload: bytes) -> None:
        if header.get("ready") is True:
            self._ready.set()
            return
        if "tunnel" in header and self._on_tunnel(header, payload):
            return
        number = header.get("id")
        if not isinstance(number, int):
            raise frames.FrameError("a frame without an id")
        answers = self._pending.get(number)
        if answers is None:
            return  # its caller no longer waits
        if answers.qsize() > MAX_QUEUED_FRAMES:
            raise frames.FrameError("more parts than were acknowledged")
        answers.put_nowait((header, payload))

    def _on_tunnel(self, header: dict[str, Any], payload: bytes) -> bool:
        """Pass on a tunnel's frame; return False when no tunnel can be open."""
        number = header["tunnel"]
        if type(number) is int and number < 0:
            receive = self._own_tunnels.get(number)
            if receive is not None:  # else it has just been closed
                receive(header, payload)
            return True
        if self._on_frame is not None:
            self._on_frame(header, payload)
        return self._on_frame is not None

    async def _transmit(self) -> None:
        try:
            while True:
                await self._stream.write(await self._outgoing.get())
        except OSError as error:
            self.mark_dead(f"the sandbox has ended: its stream broke ({type(error).__name__})")
            while True:  # or callers would wait for a slot in the queue
                await self._outgoing.get()

    async def _keep_alive(self, ttl_seconds: float) -> None:
        with contextlib.suppress(SandboxFailure):
            while True:
                await asyncio.sleep(ttl_seconds / 3)
                await self.request("ping", {}, timeout_seconds=max(ttl_seconds, 10.0))


def _pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    try:
        return frames.pack_frame(header, payload)
    except UnicodeEncodeError as error:  # no file can have that name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error


def _result(header: dict[str, Any]) -> dict[str, Any]:
    """Return a reply's result, or raise the error that it reports."""
    if "errno" in header:
        raise OSError(header["errno"], os.strerror(header["errno"]), header.get("path"))
    if "refused" in header:
        raise OperationFailed(str(header["refused"]), str(header.get("message", "")))
    result = header.get("result")
    if not isinstance(result, dict):
        raise SandboxDied("the sandbox sent something that is not a reply")
    return result


async def _chunks(source: bytes | AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    """Yield a content in parts of at most `frames.CHUNK_BYTES`."""
    if isinstance(source, bytes):
        for at in range(0, len(source), frames.CHUNK_BYTES):
            yield source[at : at + frames.CHUNK_BYTES]
    else:
        async for part in source:
            for at in range(0, len(part), frames.CHUNK_BYTES):
                yield part[at : at + frames.CHUNK_BYTES]
