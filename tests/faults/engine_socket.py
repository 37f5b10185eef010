"""A socket in front of the machine's Docker engine: away, hanging or refusing on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

ENGINE = "/var/run/docker.sock"
CHUNK_BYTES = 1 << 16

Mood = Literal["well", "away", "hangs", "fails", "forbids", "is full"]

ANSWERS = {
    "fails": (500, "containerd: connection refused"),
    "forbids": (403, "not permitted by the proxy"),
    "is full": (500, "no space left on device"),
}


class EngineSocket:
    """Passes on what workers say to the engine, as long as it is well.

    A change of its mood cuts all connections, as the end of an engine does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"unix://{path}"
        self._mood: Mood = "well"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        """Set unless it hangs."""

    async def set(self, mood: Mood) -> None:
        self._mood = mood
        if mood == "hangs":
            self._answers.clear()
        else:
            self._answers.set()
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
        if mood != "hangs":
            for writer in list(self._open):
                writer.transport.abort()
        if mood != "away":
            self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        engine, forth = await asyncio.open_unix_connection(ENGINE)
        self._open |= {back, forth}
        answering = asyncio.create_task(self._forward(engine, back))
        try:
            with contextlib.suppress(OSError):
                while data := await client.read(CHUNK_BYTES):
                    await self._answers.wait()
                    if self._is_refused(data):
                        back.write(_answer(*ANSWERS[self._mood]))
                        await back.drain()
                        break
                    forth.write(data)
                    await forth.drain()
                else:
                    forth.write_eof()
                    await answering
        finally:
            answering.cancel()
            self._open -= {back, forth}
            back.close()
            forth.close()

    async def _forward(self, engine: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await engine.read(CHUNK_BYTES):
                await self._answers.wait()
                back.write(data)
                await back.drain()
        back.close()

    def _is_refused(self, data: bytes) -> bool:
        if self._mood == "is full":
            return data.startswith(b"POST") and b"/containers/create" in data
        return self._mood in ANSWERS


def _answer(status: int, message: str) -> bytes:
    body = f'{{"message": "{message}"}}'.encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextlib.asynccontextmanager
async def engine_socket(folder: Path) -> AsyncIterator[EngineSocket]:
    socket = EngineSocket(folder / "engine.sock")
    await socket.set("well")
    try:
        yield socket
    finally:
        await socket.set("away")
