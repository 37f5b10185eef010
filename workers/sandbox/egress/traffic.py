"""The traffic of one sandbox: its open connections, what is recorded of them, and the byte budget.

Bytes are counted where they are passed on, in both directions. A job that has used its budget loses
its connections and gets no further ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from ..protocol import (
    ConnectionRecord,
    NetworkLimitReached,
    OnTraffic,
    ignore_traffic,
)
from ..resident.tunnels import TunnelBroken

IDLE_SECONDS = 600.0
"""How long a connection may carry nothing in either direction: longer than servers wait for the
next request, and than models think."""

IDLE_PRECISION = 0.01
"""The precision of the idle time: the timer is not set again for every packet."""


class SandboxConnection:
    """An open connection to a host."""

    def __init__(self, traffic: Traffic, timer: asyncio.Timeout, idle_seconds: float) -> None:
        self._traffic = traffic
        self._timer = timer
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._used_at = self._loop.time()
        self.sent_bytes = self.received_bytes = 0
        self.reason = ""

    def sent(self, count: int) -> None:
        """Count bytes that are about to be sent to the host.

        Raises:
            TunnelBroken: they exceed the job's budget.
        """
        self.sent_bytes += count
        self._used(count)

    def received(self, count: int) -> None:
        """Count bytes that came from the host.

        Raises:
            TunnelBroken: they exceed the job's budget.
        """
        self.received_bytes += count
        self._used(count)

    def cut(self, reason: str) -> None:
        """End the connection as soon as its task runs again; its client sees a reset."""
        self.reason = self.reason or reason
        self._end_at(self._loop.time())

    def _used(self, count: int) -> None:
        self._traffic.use(count)
        if self.reason:
            raise TunnelBroken
        now = self._loop.time()
        if now - self._used_at > self._idle_seconds * IDLE_PRECISION:
            self._used_at = now
            self._end_at(now + self._idle_seconds)

    def _end_at(self, when: float) -> None:
        if not self._timer.expired():
            self._timer.reschedule(when)


class Traffic:
    """All connections of one sandbox, which share the job's budget."""

    def __init__(
        self,
        on_record: OnTraffic = ignore_traffic,
        *,
        limit_bytes: int | None = None,
        used_bytes: int = 0,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Make the account of a sandbox.

        Args:
            on_record: receives a record of each connection when it has ended or is refused.
            limit_bytes: the job's budget; None: no limit.
            used_bytes: what earlier attempts of the job have used.
            idle_seconds: how long a connection may carry nothing.
        """
        self._on_record = on_record
        self._limit_bytes = limit_bytes
        self._used_bytes = used_bytes
        self._idle_seconds = idle_seconds
        self._open: set[SandboxConnection] = set()
        self._is_reported = False
        self.limit_hits = 0
        """How often the budget stopped something: connections that were cut or refused."""

    @property
    def exceeded(self) -> str | None:
        """A sentence about the budget if nothing is left of it."""
        if self._limit_bytes is None or self._used_bytes < self._limit_bytes:
            return None
        return (
            f"The job has sent and received {self._used_bytes:,} bytes; its limit (network_bytes, "
            f"over all attempts) is {self._limit_bytes:,} bytes. Its connections were closed, and "
            "no further ones are made."
        )

    def refuse(self, host: str, port: int, reason: str, *, is_unreachable: bool = False) -> None:
        """Record a request that was refused."""
        self._on_record(
            ConnectionRecord(
                host=host,
                port=port,
                is_allowed=False,
                reason=reason,
                is_unreachable=is_unreachable,
            )
        )

    def use(self, count: int) -> None:
        """Charge bytes to the budget; when it is used up, cut every connection."""
        self._used_bytes += count
        reason = self.exceeded
        if reason is None:
            return
        self.limit_hits += 1
        if not self._is_reported:
            self._is_reported = True
            self._on_record(
                NetworkLimitReached(limit_bytes=self._limit_bytes or 0, used_bytes=self._used_bytes)
            )
        for connection in self._open:
            connection.cut(reason)

    @contextlib.asynccontextmanager
    async def connection(
        self, host: str, port: int, *, secret: str = ""
    ) -> AsyncIterator[SandboxConnection]:
        """Account for a connection while the context is open, and record it at its end.

        Raises:
            TunnelBroken: it was idle for too long, or cut since the budget is used up.
        """
        begun = time.monotonic()
        connection: SandboxConnection | None = None
        timer = asyncio.timeout(self._idle_seconds)
        try:
            async with timer:
                connection = SandboxConnection(self, timer, self._idle_seconds)
                self._open.add(connection)
                yield connection
        except TimeoutError:
            if not timer.expired() or connection is None:
                raise
            connection.reason = connection.reason or f"idle for {self._idle_seconds:g} s"
            raise TunnelBroken from None
        finally:
            if connection is not None:
                self._open.discard(connection)
                self._on_record(
                    ConnectionRecord(
                        host=host,
                        port=port,
                        is_allowed=True,
                        reason=connection.reason,
                        sent_bytes=connection.sent_bytes,
                        received_bytes=connection.received_bytes,
                        seconds=round(time.monotonic() - begun, 3),
                        secret=secret,
                    )
                )
