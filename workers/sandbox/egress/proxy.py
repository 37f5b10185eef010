"""A sandbox's access to the hosts that its job may reach: an HTTP proxy in the worker.

The container has no network. The resident accepts connections to 127.0.0.1:3128 and carries each
here in a tunnel (see `tunnels`). The proxy accepts `CONNECT host:port`, and plain HTTP requests for
`http://host/path`, one for each connection. A host must be on the list (see `hosts`); its name is
resolved once, here, and the connection is made to that very address, if the list permits it. A
refusal is answered with a status and a reason, and logged with job and host, without path or query.

A tunnel that begins with a TLS handshake must name its host there, or none. What follows is unknown
to the proxy: it cannot distinguish hosts behind one address that accept one name. Only for a host
with a credential does TLS end here (see `exchange`); a credential is never put into a plain
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from functools import partial
from http import HTTPStatus

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.public_addresses import Address, parse_host

from ..credential import Credential
from ..inside.forward import CHUNK_BYTES, PORT
from ..model_meter import ModelMeter
from ..resident.client import ResidentClient
from ..resident.tunnels import LINE_BYTES, Tunnel, TunnelBroken, Tunnels
from .exchange import (
    HEAD_SECONDS,
    Exchange,
    Link,
    ProxyRequest,
    Refusal,
    parse_request,
)
from .tls import (
    MAX_HELLO_BYTES,
    ClientHello,
    JobAuthority,
    TlsTunnel,
    may_be_tls,
)
from .traffic import SandboxConnection, Traffic
from .uplink import (
    AllowedHosts,
    Lookups,
    Overloaded,
    Uplink,
    break_off,
    leads_here,
)

log = structlog.get_logger(__name__)

LOOKUP_SECONDS = 15.0
"""How long the lookup of a host's name may take, about as long as a resolver's own timeout."""
ENDED_SECONDS = 30.0
"""How long a client may continue to send after the server has ended its side."""
REFUSED_SECONDS = 1.0
"""How long to read the rest of a refused request: a reset of its connection can lose the answer."""
LOGGED_REFUSALS = 1000
"""The refusals of one sandbox that are logged; the rest are counted."""

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Egress:
    """The proxy of one sandbox."""

    def __init__(
        self,
        client: ResidentClient,
        hosts: AllowedHosts,
        uplink: Uplink,
        *,
        job_id: str,
        traffic: Traffic | None = None,
        credentials: Sequence[Credential] = (),
        meter: ModelMeter | None = None,
    ) -> None:
        """Make the proxy; `start` begins to serve.

        Args:
            client: the client of the sandbox's resident.
            hosts: what the job may reach.
            uplink: the connections of all jobs.
            job_id: the job, for the log.
            traffic: the account of the job's connections.
            credentials: what is put into requests; those of hosts that the job may not reach are
                not used.
            meter: reads what models answer at hosts with credentials; None: nothing does.
        """
        self._meter = meter
        self.traffic = traffic or Traffic()
        self._credentials = {(one.host, one.port): one for one in credentials}
        self.authority: JobAuthority | None = None
        """What the sandbox has to trust for hosts with credentials; None without any."""
        self._tunnels = Tunnels(client, self._serve)
        self._hosts = hosts
        self._uplink = uplink
        self._lookups = Lookups(uplink.resolve)
        self._job_id = job_id
        self._refusals = 0

    async def start(self, port: int = PORT) -> int:
        """Begin to serve; return the port inside the sandbox.

        Raises:
            OSError: the port is not available.
            SandboxFailure: the sandbox failed.
        """
        if names := {host for host, _ in self._credentials}:
            self.authority = await asyncio.to_thread(JobAuthority, sorted(names))
        return await self._tunnels.listen(port)

    async def close(self) -> None:
        """End every connection."""
        await self._tunnels.close()
        await self._lookups.close()
        if self._refusals > LOGGED_REFUSALS:
            log.warning("requests to hosts refused", job=self._job_id, count=self._refusals)

    async def _serve(self, tunnel: Tunnel) -> None:
        try:
            request = await _read_request(tunnel)
            if request is not None:
                await self._carry_out(tunnel, request)
        except Refusal as refusal:
            self._log(refusal)
            await _answer(tunnel, refusal)

    async def _carry_out(self, tunnel: Tunnel, request: ProxyRequest) -> None:
        if why := self.traffic.exceeded:
            self.traffic.limit_hits += 1
            raise Refusal(403, why, str(request.host), request.port)
        addresses = await self._addresses(request)
        credential = self._credentials.get((str(request.host), request.port))
        if credential is not None and self.authority is not None and request.head is None:
            context = self.authority.context(credential.host)
            await self._exchange(TlsTunnel(tunnel, context), request, addresses, credential)
            return
        async with (
            self._connected(request, addresses) as link,
            self.traffic.connection(str(request.host), request.port) as connection,
        ):
            outgoing = self._outgoing(tunnel, request, connection)
            await _relay(tunnel, request, link, connection, outgoing)

    @contextlib.asynccontextmanager
    async def _connected(
        self,
        request: ProxyRequest,
        addresses: Sequence[Address],
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[Link]:
        """Connect to the first of the host's addresses that accepts.

        Raises:
            Refusal: none does.
        """
        for address in addresses:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    link = await stack.enter_async_context(
                        self._uplink.connect(address, request.port, host=str(request.host), tls=tls)
                    )
                except ssl.SSLCertVerificationError as error:
                    why = f"has no valid certificate: {error.verify_message}."
                    raise _refusal(502, request, why) from None
                except OSError:
                    continue
                except Overloaded:
                    raise _refusal(
                        503, request, "cannot be connected to now: there are too many."
                    ) from None
                if leads_here(link[1]) and not self._hosts.names(address, request.port):
                    raise _refusal(403, request, "is the machine that the proxy runs on.")
                yield link
                return
        raise _refusal(502, request, "does not take connections.")

    async def _exchange(
        self,
        client: TlsTunnel,
        request: ProxyRequest,
        addresses: Sequence[Address],
        credential: Credential,
    ) -> None:
        """End the client's TLS here, and carry out its requests with the credential."""
        try:
            tls = await self._uplink.tls()
        except OSError:
            raise _refusal(502, request, "cannot be verified: see sandbox.ca_file.") from None
        await client.tunnel.write(_ESTABLISHED)
        async with self.traffic.connection(
            credential.host, credential.port, secret=credential.secret
        ) as connection:
            try:
                async with asyncio.timeout(HEAD_SECONDS):
                    await client.handshake()
            except TimeoutError:
                raise TunnelBroken from None
            connect = partial(self._connected, request, addresses, tls)
            try:
                await Exchange(client, credential, connect, connection, self._meter).serve()
            except Refusal as refusal:
                self._log(refusal)
                await client.write(_response(refusal))
            await client.end()
            await _drain(client.tunnel)

    async def _addresses(self, request: ProxyRequest) -> list[Address]:
        """Return the addresses to which a request may be sent.

        Raises:
            Refusal: there are none.
        """
        if not self._hosts.names(request.host, request.port):
            allowed = ", ".join(self._hosts.entries)
            raise _refusal(
                403, request, f"is none of the hosts that this job may reach: {allowed}."
            )
        if not isinstance(request.host, str):
            return [request.host]
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._lookups.addresses(request.host)
        except TimeoutError:
            raise _refusal(504, request, "could not be looked up in time.") from None
        except Overloaded:
            raise _refusal(503, request, "cannot be looked up now: there are too many.") from None
        if not found:
            raise _refusal(502, request, "has no address.")
        admitted = [address for address in found if self._hosts.admits(address, request.port)]
        if not admitted:
            raise _refusal(403, request, "has an address of a private or special network.")
        return admitted

    def _outgoing(
        self, tunnel: Tunnel, request: ProxyRequest, connection: SandboxConnection
    ) -> AsyncIterator[bytes]:
        if request.head is None:
            return self._of_tunnel(tunnel, request, connection)
        return _of_request(tunnel, request)

    async def _of_tunnel(
        self, tunnel: Tunnel, request: ProxyRequest, connection: SandboxConnection
    ) -> AsyncIterator[bytes]:
        """Yield what the client sends; its TLS handshake has to name the host of the tunnel."""
        data = await tunnel.read()
        if may_be_tls(data):
            greeting = ClientHello()
            complete = greeting.feed(data)
            while not complete and len(data) < MAX_HELLO_BYTES:
                more = await tunnel.read()
                data += more
                complete = not more or greeting.feed(more)
            is_permitted = greeting.is_valid and self._permits(greeting.name, request)
            if may_be_tls(data) and not is_permitted:
                connection.reason = "its TLS handshake names another host, or none that is valid"
                await tunnel.write(greeting.alert)
                raise TunnelBroken
        while data:
            yield data
            data = await tunnel.read()

    def _permits(self, name: str | None, request: ProxyRequest) -> bool:
        if name is None:
            return True
        host = parse_host(name)
        return host is not None and (host == request.host or self._hosts.names(host, request.port))

    def _log(self, refusal: Refusal) -> None:
        is_unreachable = refusal.status in {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}
        self.traffic.refuse(refusal.host, refusal.port, str(refusal), is_unreachable=is_unreachable)
        self._refusals += 1
        if self._refusals <= LOGGED_REFUSALS:
            log.warning(
                "request to host refused",
                job=self._job_id,
                host=refusal.host,
                port=refusal.port,
                status=refusal.status,
            )


def _refusal(status: int, request: ProxyRequest, why: str) -> Refusal:
    host, port = str(request.host), request.port
    return Refusal(status, f"{host}, port {port}, {why}", host, port)


async def _read_request(tunnel: Tunnel) -> ProxyRequest | None:
    """Read the client's request; None when it closed the connection without one."""
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await tunnel.read_until(b"\r\n\r\n")
    except TimeoutError:
        raise Refusal(408, f"The request did not come within {HEAD_SECONDS:g} s.") from None
    except asyncio.LimitOverrunError:
        raise Refusal(431, f"The request's headers are longer than {LINE_BYTES} bytes.") from None
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise Refusal(400, "The request ended within its headers.") from None
    return parse_request(head)


def _response(refusal: Refusal) -> bytes:
    text = f"{refusal}\n".encode()
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text


async def _answer(tunnel: Tunnel, refusal: Refusal) -> None:
    await tunnel.write(_response(refusal))
    await tunnel.end()
    await _drain(tunnel)


async def _drain(tunnel: Tunnel) -> None:
    """Read the rest for a moment: a reset could lose the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_SECONDS):
            while await tunnel.read():
                pass


async def _relay(
    tunnel: Tunnel,
    request: ProxyRequest,
    link: Link,
    connection: SandboxConnection,
    outgoing: AsyncIterator[bytes],
) -> None:
    """Relay both directions until the server has ended its own.

    Raises:
        TunnelBroken: either side broke off, or the job's budget is used up.
    """
    reader, writer = link
    sending = asyncio.create_task(_send(request, writer, connection, outgoing))
    try:
        if request.head is None:
            await tunnel.write(_ESTABLISHED)
        while data := await reader.read(CHUNK_BYTES):
            connection.received(len(data))
            await tunnel.write(data)
        if sending.done() and isinstance(sending.exception(), TunnelBroken):
            raise TunnelBroken
        await tunnel.end()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(ENDED_SECONDS):
                await sending
    finally:
        await cancel_and_wait(sending)


async def _send(
    request: ProxyRequest,
    writer: asyncio.StreamWriter,
    connection: SandboxConnection,
    outgoing: AsyncIterator[bytes],
) -> None:
    """Send to the server what the client sends."""
    try:
        async for part in outgoing:
            connection.sent(len(part))
            writer.write(part)
            await writer.drain()
        if request.head is None:
            writer.write_eof()
    except TunnelBroken:
        break_off(writer)
        raise


async def _of_request(tunnel: Tunnel, request: ProxyRequest) -> AsyncIterator[bytes]:
    yield request.head or b""
    body = request.body
    async for part in _chunked(tunnel) if body == "chunked" else _exactly(tunnel, body):
        yield part


async def _exactly(tunnel: Tunnel, size: int) -> AsyncIterator[bytes]:
    while size:
        data = await tunnel.read(min(size, CHUNK_BYTES))
        if not data:
            raise TunnelBroken
        size -= len(data)
        yield data


async def _chunked(tunnel: Tunnel) -> AsyncIterator[bytes]:
    """Yield a chunked body to its end, trailers included."""
    size = -1
    try:
        while size != 0:
            line = await tunnel.read_until(b"\r\n")
            size = int(line.partition(b";")[0].strip() or b"-", 16)
            yield line
            if size:
                async for part in _exactly(tunnel, size + len(b"\r\n")):
                    yield part
        while line != b"\r\n":
            line = await tunnel.read_until(b"\r\n")
            yield line
    except (ValueError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
        raise TunnelBroken from None
