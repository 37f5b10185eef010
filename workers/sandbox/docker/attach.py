"""The attach stream of a container for asyncio, over any connection to an engine.

docker-py's own attach returns a blocking socket that needs threads; here the request is written by
hand, so a unix socket, TCP and TLS share one code path and a thousand streams need no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from fanout.orchestrator.deep_agent import BoundedOutput
from fanout.workers.sandbox.errors import EngineUnavailable, SandboxDied, SandboxStartFailed

_READ_AHEAD_BYTES = 1024 * 1024
"""Of a sandbox's output, buffered in memory: one part of a reply fits."""
_READ_BYTES = 256 * 1024
"""Passed on at once: others have their turn in between."""
_STDERR = 2
_STDERR_KEPT_BYTES = 2048
"""The end of a dead resident's error output, for the error message."""
_CONNECT_SECONDS = 30.0
"""The longest that a busy engine takes to attach to a container."""
_REFUSALS = {404: SandboxDied, 409: SandboxDied, 500: SandboxStartFailed}
"""Failures by the status of a refused attach request; others are those of proxies before the
engine. Podman mounts what a container has when somebody attaches to it, and Docker at its start."""


@dataclass(frozen=True)
class EngineAddress:
    """The address of an engine."""

    url: str
    """`unix://PATH` or `tcp://HOST:PORT`."""
    tls: ssl.SSLContext | None = None

    async def connect(self) -> AttachStream:
        """Open a connection for the engine's HTTP API.

        Raises:
            EngineUnavailable: nothing answers there.
        """
        parts = urlsplit(self.url)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if parts.scheme in {"unix", "http+unix"}:
                    opening = asyncio.open_unix_connection(parts.path, limit=_READ_AHEAD_BYTES)
                else:
                    opening = asyncio.open_connection(
                        parts.hostname, parts.port, ssl=self.tls, limit=_READ_AHEAD_BYTES
                    )
                return AttachStream(*await opening)
        except (OSError, TimeoutError) as error:
            raise EngineUnavailable(f"No Docker engine answers at {self.url}.") from error

    async def status_of(self, path: str) -> int:
        """Return the status of the engine's answer to a GET request.

        Raises:
            EngineUnavailable: nothing answers there.
            OSError: the connection broke.
            EOFError: the answer is none.
        """
        stream = await self.connect()
        try:
            return await stream.status_of(path)
        finally:
            await stream.close()


class AttachStream:
    """A container's standard streams as one `ByteStream`: reads its output, writes its input.

    Docker puts an 8-byte header before each piece of output; it is removed here. The last 2 KiB of
    error output are kept separately, to explain why a container ended before it was ready.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left_in_piece = 0
        self._is_error_piece = False
        self._error_output = BoundedOutput(tail_bytes=_STDERR_KEPT_BYTES)

    @property
    def error_output(self) -> bytes:
        """The last 2 KiB of the container's error output."""
        return self._error_output.content()

    async def attach(self, path: str) -> None:
        """Ask the engine to turn this connection into the streams of a container.

        Args:
            path: the path and the query of the request.

        Raises:
            SandboxDied: the container does not exist any more.
            SandboxStartFailed: the engine could not prepare the container.
            EngineUnavailable: the engine refused or closed the connection.
        """
        request = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            "Content-Length: 0\r\n\r\n"
        )
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self.write(request.encode())
                head = await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise EngineUnavailable("The Docker engine hung up on an attach request.") from error
        status = int(head.split(b" ", 2)[1])
        if status not in {101, 200}:
            message = await self._refusal()
            failure = _REFUSALS.get(status, EngineUnavailable)
            raise failure(f"The Docker engine refused to attach: {message}")

    async def status_of(self, path: str) -> int:
        """Return the status of the engine's answer to a GET request, of which no more is read.

        Raises:
            OSError: the connection broke.
            EOFError: the answer is none.
        """
        await self.write(
            f"GET {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n".encode()
        )
        line = await self._reader.readline()
        parts = line.split(b" ", 2)
        if len(parts) < 2 or not parts[1].isdigit():  # noqa: PLR2004 - the protocol, and a number
            raise EOFError("no answer")
        return int(parts[1])

    async def _refusal(self) -> str:
        with contextlib.suppress(TimeoutError, OSError, ValueError, KeyError, TypeError):
            async with asyncio.timeout(1):
                return str(json.loads(await self._reader.readline())["message"])
        return "no reason given"

    async def read(self) -> bytes:
        """Return the next bytes of the container's output; b"" when it has ended."""
        try:
            while data := await self._read_piece():
                if not self._is_error_piece:
                    return data
                self._error_output.add(data)
        except (OSError, EOFError):
            pass
        return b""

    async def _read_piece(self) -> bytes:
        """Return a part of the present piece, or of the next one; never waits for a whole one."""
        while not self._left_in_piece:
            head = await self._reader.readexactly(8)
            self._is_error_piece = head[0] == _STDERR
            self._left_in_piece = int.from_bytes(head[4:], "big")
        data = await self._reader.read(min(self._left_in_piece, _READ_BYTES))
        self._left_in_piece -= len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Write to the container's input; waits while the peer does not read.

        Raises:
            OSError: the connection is broken.
        """
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Close the stream; the container's main process reads the end of its input and exits."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()
