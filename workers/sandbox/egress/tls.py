"""TLS that ends at the proxy: a sandbox's own authority, its clients' greetings, and the tunnels.

Only that sandbox trusts its authority. Its key exists in this process's memory only and is
forgotten with the sandbox. Its certificate limits it to the hosts for which TLS ends at the proxy,
so that it could impersonate no other host to the sandbox either. The name of the server that a
client asks for is read by OpenSSL from its first bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..inside.forward import CHUNK_BYTES
from ..protocol import Sandbox
from ..resident.tunnels import Tunnel, TunnelBroken

_HANDSHAKE = b"\x16\x03"
"""A record of a handshake, in any version of TLS."""
MAX_HELLO_BYTES = 64 << 10
"""The largest greeting of a client: a few hundred bytes, with post-quantum keys a few thousand."""
VALID_DAYS = 30
"""Longer than any sandbox lives."""
_CLOCK_SKEW = timedelta(hours=1)
_COMMON_NAME_CHARACTERS = 64
"""The longest common name (X.520); the whole name of a host is in the alternative names."""
_UNRECOGNIZED_NAME = ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
_Result = TypeVar("_Result")
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian and its descendants, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora and its descendants
    "/etc/ssl/cert.pem",
)
MAX_BUNDLE_BYTES = 4 << 20
"""The largest file of the system's authorities: several times as many as there are."""


def may_be_tls(data: bytes) -> bool:
    """Return whether a connection that begins with these bytes may begin with a TLS handshake."""
    return data.startswith(_HANDSHAKE) or data == _HANDSHAKE[:1]


class _Greeted(ssl.SSLObject):
    is_read = False
    name: str | None = None


class ClientHello:
    """The greeting of one client; the handshake goes no further here."""

    def __init__(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        assert isinstance(self._tls, _Greeted)  # noqa: S101 - narrows what ssl types widely
        self._greeted = self._tls

    def feed(self, data: bytes) -> bool:
        """Add bytes of the client; return whether the greeting is complete, or invalid."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            pass
        return True

    @property
    def is_valid(self) -> bool:
        """Whether it was a greeting that could be read."""
        return self._greeted.is_read

    @property
    def name(self) -> str | None:
        """The name that the client asks for; None without any."""
        return self._greeted.name

    @property
    def alert(self) -> bytes:
        """The answer to a client that asks for a name that it may not ask for."""
        return self._outgoing.read()


@cache
def _context() -> ssl.SSLContext:
    """Return a context without a certificate, which ends each handshake after the greeting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Greeted

    def end(tls: object, name: str | None, _context: object) -> int:
        if isinstance(tls, _Greeted):
            tls.is_read, tls.name = True, name
        return ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context.sni_callback = end
    return context


class JobAuthority:
    """Makes a certificate for each of a few hosts."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Make an authority with a new key, and certificates; takes a few milliseconds.

        Args:
            hosts: the names for which it can make certificates.
        """
        self._hosts = tuple(hosts)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("fanout: authority of one sandbox")
        self._certificate = self._sign_itself()
        self._contexts = {host: self._make_context(host) for host in self._hosts}

    @property
    def certificate(self) -> bytes:
        """The authority's certificate as PEM."""
        return _pem(self._certificate)

    def context(self, host: str) -> ssl.SSLContext:
        """Return the context of a server that is taken for a host.

        Handshakes for another name fail.

        Raises:
            KeyError: it is none of the authority's hosts.
        """
        return self._contexts[host]

    def _make_context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        with _readable_once(_private(key) + _pem(self._sign(host, key))) as path:
            context.load_cert_chain(path)

        def check_name(_tls: object, name: str | None, _context: object) -> int | None:
            is_host = name is None or name.lower().removesuffix(".") == host
            return None if is_host else _UNRECOGNIZED_NAME

        context.sni_callback = check_name
        return context

    def _sign_itself(self) -> x509.Certificate:
        names = [x509.DNSName(host) for host in self._hosts]
        usage = _key_usage(signs_certificates=True)
        return (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.NameConstraints(names, None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )

    def _sign(self, host: str, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _builder(_name(host), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=VALID_DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_CHARACTERS])])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@contextlib.contextmanager
def _readable_once(content: bytes) -> Iterator[str]:
    """Yield a path with a content: `ssl` reads keys from files only.

    It is a file in memory, or where the system has none, one that only this user can read.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


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


async def install_bundle(
    sandbox: Sandbox, path: str, authority: bytes, ca_file: Path | None
) -> None:
    """Write a bundle of the image's authorities, the installation's own and the sandbox's.

    So hosts for which TLS does not end at the proxy are verified end to end. An image without
    authorities gets those of the worker's system.

    Args:
        sandbox: an open sandbox.
        path: where the bundle is written.
        authority: the certificate of the sandbox's authority.
        ca_file: the installation's own authorities.

    Raises:
        OSError: the bundle cannot be written, or `ca_file` cannot be read.
        SandboxFailure: the sandbox failed.
    """
    parts = [await _of_image(sandbox) or await asyncio.to_thread(_of_worker), authority]
    if ca_file is not None:
        parts.append(await asyncio.to_thread(ca_file.read_bytes))
    await sandbox.write_bytes(path, b"\n".join(parts), mode=0o444)


async def _of_image(sandbox: Sandbox) -> bytes:
    for path in SYSTEM_BUNDLES:
        try:
            return await sandbox.read_bytes(path, MAX_BUNDLE_BYTES)
        except OSError:
            continue
    return b""


def _of_worker() -> bytes:
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else b""
