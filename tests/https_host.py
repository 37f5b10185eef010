"""HTTPS servers with a private authority, in the part of Git hosts and APIs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class PrivateAuthority:
    """A certificate authority in a folder: `ca.pem`, and certificates of servers."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private")])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *hosts: str) -> ssl.SSLContext:
        """The context of a server with a certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]), key)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self._folder / f"{hosts[0]}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )


class HttpsHost:
    """A server on the loopback; keeps the raw requests' headers that it received."""

    def __init__(self, context: ssl.SSLContext, serve: Serve | None = None) -> None:
        self._context = context
        self._serve = serve or self.greet
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._on_connect, "127.0.0.1", 0, ssl=self._context
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await self._serve(reader, writer)
        writer.close()

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        """The body of a request whose end is given by its length or by chunks."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        body = b""
        headers = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        if b"content-length" in headers:
            body = await reader.readexactly(int(headers[b"content-length"]))
        elif b"transfer-encoding" in headers:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        self.bodies.append(body)
        return body

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await self.read_request(reader)
        answer = b"hello " + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
