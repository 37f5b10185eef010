"""The certificate authority of one sandbox, which only that sandbox trusts.

Its key exists in this process's memory only and is forgotten with the sandbox. Its certificate
limits it to the hosts for which TLS ends at the proxy, so that it could impersonate no other host
to the sandbox either.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 30
"""Longer than any sandbox lives."""
_CLOCK_SKEW = timedelta(hours=1)
_COMMON_NAME_CHARACTERS = 64
"""The longest common name (X.520); the whole name of a host is in the alternative names."""
_UNRECOGNIZED_NAME = ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


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
