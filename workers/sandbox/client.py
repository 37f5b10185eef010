"""The worker's end of a resident's stream: requests, their answers, and a sandbox made of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol

from orchestrator.jobs.failures import SandboxFailure
from workers.sandbox import resident_commands, wire
from workers.sandbox.errors import SandboxDied
from workers.sandbox.protocol import (
    Command,
    CommandResult,
    EntryKind,
    FileEntry,
    GrepHit,
    Grepped,
    OutputSink,
    Walked,
)

DEFAULT_ANSWER_SECONDS = 120.0
"""How long a request may go unanswered before the sandbox counts as dead."""

STOP_SECONDS = resident_commands.GRACE_SECONDS + 2.0
"""How long a cancelled caller waits until its command is dead."""

MAX_QUEUED_FRAMES = 100_000
"""A command that writes byte by byte makes a small frame of each; a hostile stream may not go on forever."""

_KINDS: dict[bytes, EntryKind] = {b"f": "file", b"d": "directory", b"l": "symlink", b"o": "other"}
_Frame = tuple[dict[str, Any], bytes]


class ByteStream(Protocol):
    """Both directions of a connection; every method may raise OSError."""

    async def read(self) -> bytes:
        """What has arrived, at least one byte; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send everything; waits while the peer is behind."""
        ...

    async def close(self) -> None:
        """Close both directions."""
        ...


class OperationFailed(SandboxFailure):
    """The resident refused or failed an operation; `kind` says how."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ResidentClient:
    """Sends requests to a resident; any number of them at once.

    After the stream's end, a malformed frame or an answer that does not come, every pending and every later
    request raises `SandboxDied`.
    """

    def __init__(self, stream: ByteStream, *, ttl_seconds: float | None = None) -> None:
        """`ttl_seconds`: the resident's `FANOUT_RESIDENT_TTL`, if it has one; it hears a ping in time."""
        self._stream = stream
        self._ttl_seconds = ttl_seconds
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Queue[_Frame | SandboxDied]] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)
        self._ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._death: str | None = None

    @property
    def is_dead(self) -> bool:
        """Whether every further request fails."""
        return self._death is not None

    async def start(self, timeout_seconds: float) -> None:
        """Wait until the resident is there.

        Raises:
            SandboxDied: it ended, or did not come in time.
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
        """Close the stream, which ends the resident and everything in its sandbox."""
        self.mark_dead("the sandbox is closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            await self._stream.close()

    def mark_dead(self, reason: str) -> None:
        """Fail every pending and every later request with `SandboxDied(reason)`; the first reason counts."""
        if self._death is None:
            self._death = reason
        for answers in self._pending.values():
            answers.put_nowait(SandboxDied(self._death))
        self._ready.set()

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
        """Have an operation carried out; its result and payload.

        Args:
            op: the operation's name.
            arguments: what it takes.
            payload: at most `wire.MAX_PAYLOAD_BYTES`; more goes through `upload`.
            on_chunk: receives the parts that come before the reply, in order; the resident waits for it.
            timeout_seconds: how long no frame may arrive for it before the sandbox counts as dead; None: forever.
            stop_seconds: how long a cancelled caller waits until the operation has ended.

        Raises:
            OSError: of the right subclass, when the operation met one in the sandbox.
            OperationFailed: the operation refused.
            SandboxDied: the resident is gone, or became so.
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
        """Send a big content into a temporary file in `directory`; what to give an operation as `upload`."""
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
        """Tell the resident that nobody waits any more, and see the operation's end if there is time for it."""
        with contextlib.suppress(TimeoutError, SandboxFailure):
            async with asyncio.timeout(max(stop_seconds, 1.0)):
                await self._enqueue(_pack({"op": "cancel", "target": number}))
                while stop_seconds > 0 and "more" in (await self._next_frame(answers, None))[0]:
                    pass

    async def _receive(self) -> None:
        frames = wire.FrameReader()
        try:
            while data := await self._stream.read():
                for header, payload in frames.feed(data):
                    self._dispatch(header, payload)
            self.mark_dead("the sandbox is gone: its stream ended")
        except (OSError, EOFError) as error:
            self.mark_dead(f"the sandbox is gone: its stream broke ({type(error).__name__})")
        except wire.FrameError:
            self.mark_dead("the sandbox sent something that is no answer")

    def _dispatch(self, header: dict[str, Any], payload: bytes) -> None:
        if header.get("ready") is True:
            self._ready.set()
            return
        number = header.get("id")
        if not isinstance(number, int):
            raise wire.FrameError("a frame without an id")
        answers = self._pending.get(number)
        if answers is None:
            return  # its caller no longer waits
        if answers.qsize() > MAX_QUEUED_FRAMES:
            raise wire.FrameError("more parts than were asked for")
        answers.put_nowait((header, payload))

    async def _transmit(self) -> None:
        try:
            while True:
                await self._stream.write(await self._outgoing.get())
        except OSError as error:
            self.mark_dead(f"the sandbox is gone: its stream broke ({type(error).__name__})")
            while True:  # nobody may wait for a place in the queue
                await self._outgoing.get()

    async def _keep_alive(self, ttl_seconds: float) -> None:
        with contextlib.suppress(SandboxFailure):
            while True:
                await asyncio.sleep(ttl_seconds / 3)
                await self.request("ping", {}, timeout_seconds=max(ttl_seconds, 10.0))


class ResidentSandbox:
    """The commands and file operations of a `Sandbox`, carried out by a resident; providers add `changes`."""

    def __init__(self, client: ResidentClient) -> None:
        self._client = client

    async def run(self, command: Command, on_output: OutputSink | None = None) -> CommandResult:
        """See `Sandbox.run`. At most `resident_commands.MAX_OUTPUT_BYTES` are kept."""
        arguments: dict[str, Any] = {
            "argv": command.argv if isinstance(command.argv, str) else list(command.argv),
            "cwd": command.cwd,
            "env": dict(command.env),
            "timeout_seconds": float(command.timeout_seconds),
            "max_output_bytes": command.max_output_bytes,
            "merge_stderr": command.merge_stderr,
            "stream": on_output is not None,
        }
        stdin = command.stdin
        if len(stdin) > wire.CHUNK_BYTES:
            arguments["upload"], stdin = await self._client.upload(stdin, "/tmp"), b""  # noqa: S108 - the sandbox's own
        result, data = await self._client.request(
            "run",
            arguments,
            stdin,
            on_output,
            timeout_seconds=command.timeout_seconds + resident_commands.GRACE_SECONDS + 30.0,
            stop_seconds=STOP_SECONDS,
        )
        return CommandResult(
            exit_code=int(result["exit_code"]),
            output=data[: result["output_bytes"]],
            error_output=data[result["output_bytes"] :],
            total_bytes=int(result["total_bytes"]),
            timed_out=bool(result["timed_out"]),
            out_of_memory=bool(result["out_of_memory"]),
            seconds=float(result["seconds"]),
        )

    async def read(self, path: str, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """See `Sandbox.read`."""
        parts: list[bytes] = []
        wanted = max_bytes
        while True:
            size = wire.CHUNK_BYTES if wanted is None else min(wanted, wire.CHUNK_BYTES)
            arguments = {"path": path, "offset": offset, "max_bytes": size}
            _, data = await self._client.request("read", arguments)
            parts.append(data)
            offset += len(data)
            wanted = None if wanted is None else wanted - len(data)
            if len(data) < wire.CHUNK_BYTES or wanted == 0:
                return b"".join(parts)

    async def write(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Sandbox.write`."""
        arguments: dict[str, Any] = {"path": path, "create_only": create_only, "mode": mode}
        if len(data) > wire.CHUNK_BYTES:
            arguments["upload"], data = await self._client.upload(data, str(PurePosixPath(path).parent)), b""
        await self._client.request("write", arguments, data)

    async def delete(self, path: str) -> None:
        """See `Sandbox.delete`."""
        await self._client.request("delete", {"path": path})

    async def stat(self, path: str) -> FileEntry:
        """See `Sandbox.stat`."""
        _, data = await self._client.request("stat", {"path": path})
        return _entries(data)[0]

    async def list(self, path: str) -> tuple[FileEntry, ...]:
        """See `Sandbox.list`."""
        _, data = await self._client.request("list", {"path": path})
        return _entries(data)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walked:
        """See `Sandbox.walk`."""
        arguments = {"path": path, "max_entries": max_entries, "timeout_seconds": float(timeout_seconds)}
        result, data = await self._client.request("walk", arguments)
        entries = tuple(sorted(_entries(data), key=lambda entry: entry.path))
        return Walked(entries=entries, complete=bool(result["complete"]))

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None = None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Grepped:
        """See `Sandbox.grep`."""
        arguments = {
            "text": text,
            "path": path,
            "only": None if only is None else list(only),
            "max_hits": max_hits,
            "timeout_seconds": float(timeout_seconds),
        }
        result, data = await self._client.request("grep", arguments)
        hits = (GrepHit(path=path, line_number=number, line=line) for path, number, line in wire.decode(data))
        return Grepped(hits=tuple(hits), complete=bool(result["complete"]))


def _entries(data: bytes) -> tuple[FileEntry, ...]:
    """What `resident_files.entry_record` made."""
    entries = []
    for record in data.split(b"\0") if data else ():
        kind, size, modified, mode, path = record.split(b" ", 4)
        entries.append(
            FileEntry(
                path=os.fsdecode(path),
                kind=_KINDS[kind],
                size_bytes=int(size),
                modified_at=float(modified),
                mode=int(mode, 8),
            )
        )
    return tuple(entries)


def _pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    try:
        return wire.pack_frame(header, payload)
    except UnicodeEncodeError as error:  # no file of the sandbox can have that name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error


def _result(header: dict[str, Any]) -> dict[str, Any]:
    """A reply's result, or what it says went wrong."""
    if "errno" in header:
        raise OSError(header["errno"], os.strerror(header["errno"]), header.get("path"))
    if "refused" in header:
        raise OperationFailed(str(header["refused"]), str(header.get("message", "")))
    result = header.get("result")
    if not isinstance(result, dict):
        raise SandboxDied("the sandbox sent something that is no answer")
    return result


async def _chunks(source: bytes | AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    """The parts of a content, none above the size of a chunk."""
    if isinstance(source, bytes):
        for at in range(0, len(source), wire.CHUNK_BYTES):
            yield source[at : at + wire.CHUNK_BYTES]
    else:
        async for part in source:
            for at in range(0, len(part), wire.CHUNK_BYTES):
                yield part[at : at + wire.CHUNK_BYTES]
