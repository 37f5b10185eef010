"""A way to Redis that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Literal

Mode = Literal["pass", "cut", "swallow", "no answers"]
CHUNK_BYTES = 64 * 1024


class Proxy:
    """A TCP proxy in front of one port of the loopback interface.

    `cut` ends all connections and refuses new ones. `swallow` keeps and takes connections and lets
    nothing through, as a network does that loses packets; what it swallowed is lost with its
    connection. `no answers` lets through what is asked, and ends a connection instead of passing an
    answer on.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._mode: Mode = "pass"
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def set_mode(self, mode: Mode) -> None:
        """Change what happens to traffic from now on."""
        before, self._mode = self._mode, mode
        if mode == "cut" or (before == "swallow" and mode == "pass"):
            for writer in list(self._open):
                writer.transport.abort()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.set_mode("cut")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "cut":
            writer.transport.abort()
            return
        self._open.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            back, upstream = await asyncio.open_connection("127.0.0.1", self._target)
            self._open.add(upstream)
            copies = [
                asyncio.create_task(self._copy(reader, upstream, {"pass", "no answers"})),
                asyncio.create_task(self._copy(back, writer, {"pass"})),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in copies:
                copy.cancel()
        except OSError:
            pass  # Redis is away
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, when: Collection[Mode]
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._mode in when:
                    writer.write(chunk)
                    await writer.drain()
                elif self._mode == "no answers":
                    return
