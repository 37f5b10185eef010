"""A receiver of webhooks on the loopback, which answers as a test says and remembers what came."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


def answer(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What a test says and sees."""

    answers: list[bytes] = field(default_factory=list)
    """The next ones; then always OK. Empty bytes: none, the connection stays open."""
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook?a=b"

    async def wait_for(self, count: int) -> list[Request]:
        async with self.came:
            await self.came.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value
                for name, _, value in (line.partition(": ") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            to_send = self.answers.pop(0) if self.answers else OK
            async with self.came:
                self.requests.append(Request(head[0], headers, body))
                self.came.notify_all()
            if not to_send:
                await reader.read()  # until the other end closes
            writer.write(to_send)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver(*answers: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    made = Receiver(list(answers))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
