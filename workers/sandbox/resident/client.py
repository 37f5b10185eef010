"""The client of a resident: sends requests over a stream and receives the replies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.failures import SandboxFailure

from ..errors import SandboxDied
from ..inside import frames
from ..inside.forward import CHUNK_BYTES as TUNNEL_BYTES
from .replies import integer, parse_reply, unwrap

Frame = tuple[int, bytes, bytes]
"""Kind, header and payload."""
DEFAULT_ANSWER_SECONDS = 120.0
"""How long a request may remain unanswered before the sandbox counts as dead."""

TURN_SECONDS = 0.005
"""How long one sandbox's frames may occupy the loop before others have their turn."""

OnFrame = Callable[[int, dict[str, Any], bytes], None]
"""Receives a tunnel's frame: number, header and payload; see `workers.sandbox.inside.forward`. Must
not wait; raises FrameError when the frame breaks the protocol."""

_NO_REPLY = "the sandbox sent something that is not a reply"
_WINDOW = 3
"""Parts without an answer: the next ones are on their way while one is written."""

_READ_BYTES = 4 * 1024**2
"""The bytes read at once: enough to be quick, and little memory for a process."""

_names = itertools.count(1)


class PendingReply:
    """What may still be received for a request."""

    def __init__(self, *, takes_parts: bool, max_reply_bytes: int) -> None:
        self.frames: asyncio.Queue[Frame | SandboxDied] = asyncio.Queue()
        self.parts_left = frames.CHUNKS_IN_FLIGHT if takes_parts else 0
        """How many parts may come before one of them is acknowledged."""
        self.max_reply_bytes = max_reply_bytes
        self.is_abandoned = False
        """Nobody waits for it: what still comes is dropped."""

    def check(self, kind: int, header_bytes: int, payload_bytes: int) -> None:
        """Raise FrameError unless a frame of this kind and size may come."""
        if kind == frames.MORE:
            allowed = self.parts_left > 0 and not header_bytes
            allowed = allowed and payload_bytes <= frames.CHUNK_BYTES
        else:
            allowed = header_bytes <= frames.MAX_REPLY_HEADER_BYTES
            allowed = allowed and payload_bytes <= self.max_reply_bytes
        if not allowed:
            raise frames.FrameError("more than was requested or acknowledged")

    def receive(self, kind: int, header: bytes, payload: bytes) -> None:
        """Take a frame that passed `check`."""
        if kind == frames.MORE:
            self.parts_left -= 1
        if not self.is_abandoned:
            self.frames.put_nowait((kind, header, payload))


class ByteStream(Protocol):
    """Both directions of a connection; every method may raise OSError."""

    async def read(self) -> bytes:
        """Return what has arrived, at least one byte; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send everything; waits while the peer is behind."""

    async def close(self) -> None:
        """Close both directions."""


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
        self._reader = frames.FrameReader(self._accept)
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, PendingReply] = {}
        """Those whose reply has not arrived."""
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)
        self._turn = asyncio.Lock()
        """A queue that is full lets later callers pass earlier ones; a lock does not."""
        self._ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._on_frame: OnFrame | None = None
        self._on_death: Callable[[], None] = lambda: None
        self._own_tunnels: dict[int, OnFrame] = {}
        self._last_tunnel = 0
        self._death: str | None = None
        self.died_at: float | None = None
        """When it was marked as dead, by `time.monotonic`; None while it lives."""

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
            async with asyncio.timeout(timeout_seconds):  # wait_for loses cancellations before 3.12
                await self._ready.wait()
        except TimeoutError:
            self.mark_dead(f"the sandbox did not start within {timeout_seconds:g} s")
        self._raise_if_dead()
        if self._ttl_seconds is not None:
            self._tasks.append(asyncio.create_task(self._keep_alive(self._ttl_seconds)))

    async def end(self, timeout_seconds: float) -> bool:
        """Let the resident kill all processes; it exits when the stream is closed.

        Returns:
            Whether it has certainly done so; else its container has to be killed.
        """
        was_dead = self.is_dead
        self.mark_dead("the sandbox is closed")
        await cancel_and_wait(*self._tasks)
        if was_dead:  # then its stream's end may be that of the connection
            return False
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._end_processes(next(self._numbers))
        except (OSError, EOFError, TimeoutError, frames.FrameError):
            return False
        return True

    async def _end_processes(self, number: int) -> None:
        """Return when the resident has killed all processes, or has exited."""
        self._exchanges[number] = PendingReply(takes_parts=False, max_reply_bytes=0)
        await self._stream.write(_pack_request(number, "end", {}, b""))
        while data := await self._stream.read():
            for kind, its_number, header, _payload in self._reader.feed(data):
                if (kind, its_number) == (frames.REPLY, number):
                    if parse_reply(header):
                        raise frames.FrameError("an end has no result")
                    return

    async def close(self) -> None:
        """Close the stream, which ends the resident and all processes of its sandbox."""
        self.mark_dead("the sandbox is closed")
        await cancel_and_wait(*self._tasks)
        self._tasks.clear()  # their errors refer to this client
        with contextlib.suppress(OSError):
            await self._stream.close()

    def mark_dead(self, reason: str) -> None:
        """Fail every pending and every later request with `SandboxDied(reason)`.

        Only the first reason is kept.
        """
        if self._death is None:
            self._death, self.died_at = reason, time.monotonic()
        for exchange in self._exchanges.values():
            exchange.frames.put_nowait(SandboxDied(self._death))
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
        with self.parsing():
            return integer(result, "port", 1, 65535)

    def begin_tunnel(self, receive: OnFrame) -> int:
        """Return a new number for a tunnel to a process that is about to be started.

        Its frames are passed to `receive`.
        """
        self._last_tunnel = next(self._numbers)
        self._own_tunnels[-self._last_tunnel] = receive
        return -self._last_tunnel

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
        header = {"event": event, "bytes": taken}
        await self._enqueue(frames.pack_frame(frames.TUNNEL, number, header, payload))

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        on_chunk: Callable[[bytes], Awaitable[None]] | None = None,
        *,
        max_reply_bytes: int = frames.CHUNK_BYTES,
        timeout_seconds: float | None = DEFAULT_ANSWER_SECONDS,
        stop_seconds: float = 0.0,
    ) -> tuple[dict[str, Any], bytes]:
        """Carry out an operation; return its result and its payload.

        Args:
            op: the operation's name.
            arguments: its arguments.
            payload: at most `frames.MAX_PAYLOAD_BYTES`; larger contents are sent with `upload`.
            on_chunk: receives the parts that precede the reply, in order; the resident waits for
                it. Without it no part may come.
            max_reply_bytes: of the reply's payload, at most `frames.MAX_PAYLOAD_BYTES`; a resident
                that sends more counts as dead.
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
        frame = _pack_request(number, op, arguments, payload)
        exchange = self._exchanges[number] = PendingReply(
            takes_parts=on_chunk is not None, max_reply_bytes=max_reply_bytes
        )
        try:
            await self._enqueue(frame)
            while True:
                kind, header, data = await self._next_frame(exchange, timeout_seconds)
                if kind == frames.REPLY:
                    break
                if on_chunk is not None:
                    await on_chunk(data)
                exchange.parts_left += 1
                await self._enqueue(frames.pack_frame(frames.CREDIT, number))
        finally:
            if number in self._exchanges and not self.is_dead:
                await self._abandon(number, exchange, stop_seconds)
        return unwrap(self._result(header)), data

    def _result(self, header: bytes) -> dict[str, Any] | Exception:
        with self.parsing():
            return parse_reply(header)

    @contextlib.contextmanager
    def parsing(self) -> Iterator[None]:
        """Count the sandbox as dead when what it sent cannot be parsed.

        Raises:
            SandboxDied: the block raised a FrameError.
        """
        try:
            yield
        except frames.FrameError as error:
            self.mark_dead(_NO_REPLY)
            raise SandboxDied(_NO_REPLY) from error

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise SandboxDied(self._death)

    async def _enqueue(self, frame: bytes) -> None:
        """Queue a frame; it is sent whole even when the caller is cancelled.

        Frames are sent in the order of the calls: a process's input must not overtake its start.
        """
        async with self._turn:
            await self._outgoing.put(frame)
        self._raise_if_dead()

    async def _next_frame(self, exchange: PendingReply, timeout_seconds: float | None) -> Frame:
        try:
            async with asyncio.timeout(timeout_seconds):
                frame = await exchange.frames.get()
        except TimeoutError:
            self.mark_dead(f"the sandbox did not answer within {timeout_seconds:g} s")
            frame = await exchange.frames.get()
        if isinstance(frame, SandboxDied):
            raise frame
        return frame

    async def _abandon(self, number: int, exchange: PendingReply, stop_seconds: float) -> None:
        """Cancel a request in the resident; wait for its end if there is time."""
        try:
            with contextlib.suppress(TimeoutError, SandboxFailure):
                async with asyncio.timeout(max(stop_seconds, 1.0)):
                    await self._enqueue(frames.pack_frame(frames.CANCEL, number))
                    while stop_seconds > 0 and number in self._exchanges:
                        await self._next_frame(exchange, None)
        finally:
            exchange.is_abandoned = True
            exchange.frames = asyncio.Queue()

    async def _receive(self) -> None:
        clock = asyncio.get_running_loop().time
        turn_ends = clock() + TURN_SECONDS
        try:
            while data := await self._stream.read():
                for frame in self._reader.feed(data):
                    self._dispatch(*frame)
                    if clock() > turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = clock() + TURN_SECONDS
                if self.is_dead:
                    return
                if clock() > turn_ends:  # reading what has arrived already does not wait
                    await asyncio.sleep(0)
                    turn_ends = clock() + TURN_SECONDS
            self.mark_dead("the sandbox has ended: its stream ended")
        except (OSError, EOFError) as error:
            self.mark_dead(f"the sandbox has ended: its stream broke ({type(error).__name__})")
        except frames.FrameError:
            self.mark_dead(_NO_REPLY)

    def _accept(self, kind: int, number: int, header_bytes: int, payload_bytes: int) -> None:
        """Raise FrameError unless a frame with this prefix may come now."""
        exchange = self._exchanges.get(number)
        if kind in (frames.MORE, frames.REPLY) and exchange is not None:
            exchange.check(kind, header_bytes, payload_bytes)
        elif kind == frames.TUNNEL and self._may_have_tunnel(number):
            if header_bytes > frames.MAX_TUNNEL_HEADER_BYTES or payload_bytes > TUNNEL_BYTES:
                raise frames.FrameError("more than fits a tunnel's frame")
        elif kind != frames.READY or self._ready.is_set() or number or header_bytes + payload_bytes:
            raise frames.FrameError("a frame that was not requested")

    def _may_have_tunnel(self, number: int) -> bool:
        """Whether a tunnel of this number is open, or was until a moment ago."""
        return -self._last_tunnel <= number < 0 or (number > 0 and self._on_frame is not None)

    def _dispatch(self, kind: int, number: int, header: bytes, payload: bytes) -> None:
        if kind == frames.READY:
            self._ready.set()
        elif kind == frames.TUNNEL:
            receive = self._own_tunnels.get(number) if number < 0 else self._on_frame
            if receive is not None:  # else it has just been closed
                receive(number, frames.decode_header(header), payload)
        elif number in self._exchanges:  # else the sandbox has just died
            self._exchanges[number].receive(kind, header, payload)
            if kind == frames.REPLY:
                del self._exchanges[number]

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


def _pack_request(number: int, op: str, arguments: dict[str, Any], payload: bytes) -> bytes:
    try:
        header = {"op": op, "arguments": arguments}
        return frames.pack_frame(frames.REQUEST, number, header, payload)
    except UnicodeEncodeError as error:  # no file can have that name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error


async def upload(
    client: ResidentClient,
    source: bytes | AsyncIterable[bytes],
    directory: str,
    begun: asyncio.Future[str] | None = None,
) -> str:
    """Send a large content into a temporary file.

    Args:
        client: the client of the resident.
        source: the content.
        directory: the file's folder.
        begun: gets the returned name as soon as the file exists.

    Returns:
        The argument `upload` for the operation that uses it.

    Raises:
        OSError: the file cannot be written.
        SandboxFailure: see `ResidentClient.request`.
    """
    name = f"{next(_names)}"
    arguments: dict[str, Any] = {"id": name, "directory": directory}
    sent: deque[asyncio.Task[Any]] = deque()
    try:
        async for chunk in _chunks(source):
            sent.append(asyncio.create_task(client.request("upload", arguments, chunk)))
            if "directory" in arguments:
                await sent.popleft()
                arguments = {"id": name}
                if begun is not None:
                    begun.set_result(name)
            elif len(sent) >= _WINDOW:
                await sent.popleft()
        while sent:
            await sent.popleft()
    except BaseException:
        await cancel_and_wait(*sent)
        with contextlib.suppress(Exception):
            await client.request("upload", {"id": name, "abort": True}, timeout_seconds=1.0)
        raise
    return name


async def use_while_sent(
    client: ResidentClient,
    file: Path,
    directory: str,
    use: Callable[[str, int], Awaitable[object]],
) -> None:
    """Send a file that an operation uses while it arrives.

    Args:
        client: the client of the resident.
        file: the file, which is not empty.
        directory: the folder of the temporary file.
        use: asks for the operation; gets its argument `upload`, and the file's size in bytes.

    Raises:
        OSError: the file cannot be read, or not be written there.
        SandboxFailure: see `ResidentClient.request`.
        OperationFailed: the operation was rejected or failed.
    """
    size = (await asyncio.to_thread(file.stat)).st_size
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    sending = asyncio.create_task(upload(client, _parts(file, size), directory, begun))
    try:
        await asyncio.wait([sending, begun], return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            await use(begun.result(), size)
        await sending
    except Exception:
        if sending.done():
            await sending  # why the file was not sent to its end
        raise
    finally:
        await cancel_and_wait(sending)


async def _parts(path: Path, size: int) -> AsyncIterator[bytes]:
    """Yield a file's content in parts, read in a thread.

    Raises:
        OSError: it cannot be read, or has another size.
    """
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while part := await asyncio.to_thread(file.read, _READ_BYTES):
            size -= len(part)
            yield part
        if size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    finally:
        await asyncio.to_thread(file.close)


async def _chunks(source: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a content in parts of at most `frames.CHUNK_BYTES`."""
    if isinstance(source, bytes):
        for at in range(0, len(source), frames.CHUNK_BYTES):
            yield source[at : at + frames.CHUNK_BYTES]
    else:
        async for part in source:
            for at in range(0, len(part), frames.CHUNK_BYTES):
                yield part[at : at + frames.CHUNK_BYTES]
