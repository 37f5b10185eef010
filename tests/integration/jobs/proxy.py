"""A Redis whose answers get lost: what was asked takes effect, and the connection breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class LossyRedis:
    """Stands between a client and a Redis on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self.url = ""
        self.lose_answer_to = b""
        """The next request that holds these bytes is passed on; its answer is not."""
        self.lost = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answers, redis = await asyncio.open_connection("127.0.0.1", self._port)
        answering = asyncio.create_task(self._forward(answers, back))
        with contextlib.suppress(OSError):
            while request := await client.read(1 << 20):
                loses = bool(self.lose_answer_to) and self.lose_answer_to in request
                if loses:
                    self.lose_answer_to, self.lost = b"", self.lost + 1
                    answering.cancel()
                redis.write(request)
                await redis.drain()
                if loses:
                    await answers.read(1)
                    break
        answering.cancel()
        redis.close()
        back.close()

    async def _forward(self, answers: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while answer := await answers.read(1 << 20):
                back.write(answer)
                await back.drain()


@contextlib.asynccontextmanager
async def lossy(port: int) -> AsyncIterator[LossyRedis]:
    proxy = LossyRedis(port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
