"""Connections and name lookups for the proxies of a worker's sandboxes."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.public_addresses import Address

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name; OSError when it has none."""

CONNECT_SECONDS = 10.0
"""For each address."""
LAST_BYTES_SECONDS = 5.0
"""How long the last bytes to a client may take before its connection is cut."""
READ_AHEAD_BYTES = 32 << 10
"""Buffered for each connection: there may be thousands."""

_LOOKUP_THREADS = 16
_LOOKUPS_OF_A_JOB = 4
"""At once: a job whose lookups hang leaves threads for the others."""
_WAITING_LOOKUPS = 128
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_MOST_CONNECTIONS = 2048
"""Of all jobs of a worker: each uses two descriptors of the few thousand that a process has."""


class Overloaded(Exception):
    """The limit on connections or lookups is reached."""


class Uplink:
    """Lookups in dedicated threads and a bounded number of connections.

    Shared by a worker's jobs.
    """

    def __init__(
        self,
        resolve: Resolve | None = None,
        *,
        max_connections: int | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """Make an uplink.

        Args:
            resolve: looks a name up; None uses the system's resolver.
            max_connections: None allows half of the files that this process may open, at most
                2,048.
            ca_file: a PEM file of authorities that hosts may have besides the system's.
        """
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="lookup")
        self.resolve = resolve or self._ask_the_system
        self._free = _connections() if max_connections is None else max_connections
        self.ca_file = ca_file
        self._tls: ssl.SSLContext | None = None

    async def tls(self) -> ssl.SSLContext:
        """Return the context of TLS to hosts, which verifies their certificates.

        Raises:
            OSError: the file of authorities cannot be read, or contains none.
        """
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._tls = await loop.run_in_executor(self._threads, _verifying, self.ca_file)
        return self._tls

    @asynccontextmanager
    async def connect(
        self, address: Address, port: int, *, host: str = "", tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection, which is reset when the context ends with an exception.

        Args:
            address: the host's address.
            port: the port.
            host: the name that its certificate must have.
            tls: the context of TLS; None connects without it.

        Raises:
            SSLCertVerificationError: the host's certificate is not valid.
            OSError: the connection failed.
            Overloaded: the limit on connections is reached.
        """
        if self._free <= 0:
            raise Overloaded
        self._free -= 1
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    str(address),
                    port,
                    limit=READ_AHEAD_BYTES,
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
            link = writer.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its peer may vanish
            try:
                yield reader, writer
                writer.close()
                with suppress(OSError):
                    async with asyncio.timeout(LAST_BYTES_SECONDS):
                        await writer.wait_closed()
            finally:
                break_off(writer)
        finally:
            self._free += 1

    def close(self) -> None:
        """Cancel all lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask_the_system(self, name: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name)


class Lookups:
    """The lookups of one job. Simultaneous ones of one name are shared."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._turns = asyncio.Semaphore(_LOOKUPS_OF_A_JOB)
        self._running: dict[str, asyncio.Task[list[Address]]] = {}

    async def addresses(self, name: str) -> list[Address]:
        """Return the addresses of a name; empty when it has none.

        Raises:
            Overloaded: too many other lookups are waiting.
        """
        task = self._running.get(name)
        if task is None:
            if len(self._running) >= _WAITING_LOOKUPS:
                raise Overloaded
            task = self._running[name] = asyncio.create_task(self._look_up(name))
            task.add_done_callback(lambda _task: self._running.pop(name))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel all lookups."""
        await cancel_and_wait(*self._running.values())

    async def _look_up(self, name: str) -> list[Address]:
        async with self._turns:  # until it is over: a thread cannot be called back
            try:
                found = await self._resolve(name)
                return [ipaddress.ip_address(text.partition("%")[0]) for text in found]
            except (OSError, UnicodeError):
                return []


def break_off(writer: asyncio.StreamWriter) -> None:
    """Reset a connection unless it is closed, so that its peer knows the data is incomplete."""
    # When it is closed already, its socket is too, and one with TLS knows its socket no more.
    with suppress(OSError, AttributeError):
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    writer.transport.abort()


def leads_here(writer: asyncio.StreamWriter) -> bool:
    """Return whether a connection's peer is this machine, by any of its addresses."""
    return bool(writer.get_extra_info("sockname")[0] == writer.get_extra_info("peername")[0])


def _verifying(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _look_up(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = files == resource.RLIM_INFINITY
    return _MOST_CONNECTIONS if is_unlimited else min(files // 2, _MOST_CONNECTIONS)
