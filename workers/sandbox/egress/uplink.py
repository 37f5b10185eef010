"""The way out of a worker's sandboxes: which hosts a list permits, lookups and connections."""

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
from dataclasses import dataclass
from pathlib import Path

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.public_addresses import (
    Address,
    ascii_name,
    is_public,
    parse_address,
    parse_authority,
)

DEFAULT_PORTS = frozenset({80, 443})
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name; OSError when it has none."""

CONNECT_SECONDS = 10.0
"""The time for each address."""
LAST_BYTES_SECONDS = 5.0
"""How long the last bytes to a client may take before its connection is cut."""
READ_AHEAD_BYTES = 32 << 10
"""Buffered for each connection: there may be thousands."""

_LOOKUP_THREADS = 16
_LOOKUPS_OF_A_JOB = 4
"""The most lookups of a job at once: a job whose lookups hang leaves threads for the others."""
_WAITING_LOOKUPS = 128
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_MOST_CONNECTIONS = 2048
"""The most connections of all jobs of a worker: each uses two descriptors of the few thousand that
a process has."""


@dataclass(frozen=True)
class _Entry:
    """An entry of the list."""

    host: str | Address
    """The name of the host; for a wildcard, the required ending of the name with its dot."""
    ports: frozenset[int]

    def covers(self, host: str | Address, port: int) -> bool:
        if port not in self.ports:
            return False
        is_below = isinstance(self.host, str) and self.host.startswith(".")
        if is_below and isinstance(host, str):
            return host.endswith(str(self.host))
        return host == self.host

    def includes(self, other: _Entry) -> bool:
        """Return whether it covers all that another entry covers."""
        if not other.ports <= self.ports:
            return False
        is_below = isinstance(self.host, str) and self.host.startswith(".")
        if is_below and isinstance(other.host, str):
            return other.host == self.host or other.host.endswith(str(self.host))
        return other.host == self.host


class AllowedHosts:
    """The hosts that the commands of one job may reach: its limit `network`.

    An entry of the list is one of

        name                  example.org: this name and no other, on the ports 80 and 443
        names below one       *.example.org: any name with this ending, at any depth, but not
                              example.org itself
        address               192.0.2.7, 2001:db8::7 (or [2001:db8::7]): requests to this address
        any of them and port  example.org:8443, [2001:db8::7]:8443: this port only

    A name permits the addresses to which it resolves. Those of private, local and other special
    networks are refused, unless the list names the address itself, too.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        """Parse the entries of a list.

        Raises:
            InvalidJob: an entry is malformed; the message quotes it.
        """
        self.entries = tuple(entries)
        self._entries = tuple(_parse_entry(entry) for entry in entries)

    def names(self, host: str | Address, port: int) -> bool:
        """Return whether a request for this host may be tried."""
        return any(entry.covers(host, port) for entry in self._entries)

    def cut(self, entries: Sequence[str]) -> tuple[str, ...]:
        """Return those entries of another list that permit nothing else than this one does.

        Raises:
            InvalidJob: an entry is malformed; the message quotes it.
        """
        parsed = {text: _parse_entry(text) for text in entries}
        return tuple(
            text
            for text, entry in parsed.items()
            if any(permitted.includes(entry) for permitted in self._entries)
        )

    def admits(self, address: Address, port: int) -> bool:
        """Return whether a connection to this address is permitted, whatever its name."""
        return is_public(address) or self.names(address, port)


def _parse_entry(text: str) -> _Entry:
    wildcard = text.startswith("*.")
    parsed = parse_authority(ascii_name(text.removeprefix("*.")))
    if bare := parse_address(text):  # IPv6 without brackets
        parsed = (bare, None)
    if parsed is None or (wildcard and (not isinstance(parsed[0], str) or "." not in parsed[0])):
        raise InvalidJob(
            f"The limit `network` names {text[:300]!r}, which is no host. An entry is a name "
            "(example.org), the names below one (*.example.org) or an address, each with :port "
            "where it is not 80 or 443."
        )
    host, port = parsed
    return _Entry(f".{host}" if wildcard else host, frozenset({port}) if port else DEFAULT_PORTS)


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
