"""The server's side of TLS on a tunnel."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fanout.workers.sandbox.inside.forward import CHUNK_BYTES
from fanout.workers.sandbox.resident.tunnels import Tunnel, TunnelBroken

_Result = TypeVar("_Result")


class TlsTunnel:
    """A tunnel whose client speaks TLS with this process.

    Every method may raise `TunnelBroken`: the client broke off, or does not speak TLS.
    """

    def __init__(self, tunnel: Tunnel, context: ssl.SSLContext) -> None:
        self.tunnel = tunnel
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._turn = asyncio.Lock()

    async def handshake(self) -> None:
        """Carry out the handshake."""
        await self._do(self._tls.do_handshake)

    async def read(self) -> bytes:
        """Return the next bytes; empty when the client sends no more."""
        try:
            return await self._do(partial(self._tls.read, CHUNK_BYTES))
        except ssl.SSLZeroReturnError:
            return b""

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client does not read them."""
        for start in range(0, len(data), CHUNK_BYTES):
            await self._do(partial(self._tls.write, data[start : start + CHUNK_BYTES]))

    async def end(self) -> None:
        """Send no more."""
        with contextlib.suppress(ssl.SSLError):  # the client has not ended its side, and need not
            self._tls.unwrap()
        await self._flush()
        await self.tunnel.end()

    async def _do(self, step: Callable[[], _Result]) -> _Result:
        """Repeat a step of the protocol until it has what it needs."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self.tunnel.read()
                if not data:
                    raise TunnelBroken from None  # without a close_notify: it may be cut
                self._incoming.write(data)
            except ssl.SSLZeroReturnError:
                raise
            except ssl.SSLError:
                await self._flush()  # the alert that says why
                raise TunnelBroken from None
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        async with self._turn:
            if data := self._outgoing.read():
                await self.tunnel.write(data)
