"""A proxy with a real resident as a process of its own, for tests that play the job's part."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from fanout.workers.sandbox.docker.steward_client import code_files
from fanout.workers.sandbox.egress.proxy import Egress
from fanout.workers.sandbox.egress.uplink import AllowedHosts, Uplink
from fanout.workers.sandbox.resident.client import ResidentClient
from tests.unit.test_resident import WITHOUT_PTRACE, ProcessStream

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
JOB = "the-job"


class Server:
    """An upstream server on the loopback; each test says what it does with a connection."""

    def __init__(self, serve: Callable[..., Awaitable[None]], address: str = "127.0.0.1") -> None:
        self._serve, self._address = serve, address
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connect, self._address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, EOFError):
            await self._serve(reader, writer)
        writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def mirror_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + head)
    await writer.drain()


class Names:
    """A resolver that knows what a test told it, one answer after the other; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name not in self._answers:
            raise socket.gaierror
        found = self._answers[name]
        return found.pop(0) if len(found) > 1 else found[0]


class Inside:
    """A sandbox whose job may reach some hosts, as the job sees it."""

    def __init__(self, client: ResidentClient, proxy: Egress, port: int) -> None:
        self.client, self.proxy, self.port = client, proxy, port

    async def connect(self) -> Link:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def tunnel(self, target: str) -> Link:
        reader, writer = await self.connect()
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return reader, writer

    async def ask(self, request: bytes) -> bytes:
        """The whole answer to some bytes."""
        reader, writer = await self.connect()
        writer.write(request)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer


Open = Callable[..., Awaitable[Inside]]


def write_code(folder: Path) -> Path:
    """Write the resident's code; reading files blocks, so this is not for the event loop."""
    for name, content in code_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@contextlib.asynccontextmanager
async def sandboxes(folder: Path) -> AsyncIterator[Open]:
    """Yield what opens sandboxes with the code in a folder."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(
            *hosts: str, names: Names | None = None, uplink: Uplink | None = None, **options: Any
        ) -> Inside:
            process = await asyncio.create_subprocess_exec(
                *WITHOUT_PTRACE,
                sys.executable,
                "-ISB",
                str(folder),
                stdin=-1,
                stdout=-1,
                env={"PATH": os.environ["PATH"]},
            )
            client = ResidentClient(ProcessStream(process))
            stack.push_async_callback(client.close)
            await client.start(10)
            uplink = uplink or Uplink(names or Names())
            proxy = Egress(client, AllowedHosts(hosts), uplink, job_id=JOB, **options)
            stack.push_async_callback(proxy.close)
            return Inside(client, proxy, await proxy.start(port=0))

        yield open_one


def http_status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
