"""The name of a server that a TLS client asks for, read by OpenSSL from its first bytes."""

from __future__ import annotations

import ssl
from functools import cache

_HANDSHAKE = b"\x16\x03"
"""A record of a handshake, in any version of TLS."""
MAX_HELLO_BYTES = 64 << 10
"""Of a client's greeting: a few hundred bytes, with post-quantum keys a few thousand."""


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
