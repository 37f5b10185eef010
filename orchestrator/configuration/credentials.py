"""The credentials of an agent definition: the entries of its key `credentials`.

A definition names a secret and never contains one; the values are the setting `FANOUT_SECRETS`. So
a definition cannot name another variable of the worker, such as a model's key.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from ..jobs.spec import WireModel

HTTPS_PORT = 443
MAX_PORT = 65535
"""The largest TCP port."""
MIN_SECRET_CHARACTERS = 8
"""The shortest value of a secret: a shorter one would be found, and hidden, in ordinary answers of
a host."""

DEFAULT_USERNAME = "x-access-token"
"""The user name that Git hosts expect with a token."""

SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]
"""The name of a secret, the end of its variable FANOUT_SECRETS__<NAME>."""

_HOST = re.compile(
    r"(?=.{1,253}(?::|$))(?P<name>[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*)(?::(?P<port>[0-9]{1,5}))?"
)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_PATH = re.compile(r"/[!-~]*")
_VALUE = re.compile(rf"[!-~](?:[ -~]{{{MIN_SECRET_CHARACTERS - 2},}})[!-~]")
_HEADERS_OF_THE_PROXY = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive",
    "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


def _usable_host(host: str) -> str:
    name = host.lower()
    match = _HOST.fullmatch(name)
    if match is None or re.fullmatch(r"[0-9]+|0x.*", match["name"].rpartition(".")[2]):
        raise ValueError("a host is one name, with :port if it is not 443; no address, no wildcard")
    if match["port"] and not 0 < int(match["port"]) <= MAX_PORT:
        raise ValueError(f"a port is a number from 1 to {MAX_PORT}")
    return name


def _usable_header(header: str) -> str:
    if not _TOKEN.fullmatch(header) or header.lower() in _HEADERS_OF_THE_PROXY:
        raise ValueError("it is the name of a header such as Authorization or X-Api-Key")
    return header


def _usable_path(path: str) -> str:
    if not _PATH.fullmatch(path) or "?" in path or "#" in path:
        raise ValueError("a path begins with / and has no query; * matches any characters")
    return path


def _usable_method(method: str) -> str:
    if not _TOKEN.fullmatch(method) or method.upper() != method or method == "CONNECT":
        raise ValueError("a method is a word such as GET or POST")
    return method


def usable_url(url: str) -> str:
    """Return the address of a service.

    Raises:
        ValueError: It is not an HTTP address, or holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a url begins with http:// or https:// and names a host")
    if parts.username or parts.password:
        raise ValueError(
            "a url holds no password; name it in headers, as ${NAME}, or in credentials"
        )
    return url


def usable_value(value: str) -> str:
    """Return a secret's value.

    Raises:
        ValueError: It is too short, or cannot be in a header; the text does not contain it.
    """
    if not _VALUE.fullmatch(value):
        raise ValueError(
            f"a secret has at least {MIN_SECRET_CHARACTERS} characters, all of them printable "
            "ASCII, without a space or a line's end around it"
        )
    return value


class HeaderCredential(WireModel):
    """A header whose value is a secret, which is only named."""

    secret: SecretName
    header: Annotated[str, AfterValidator(_usable_header)] = "Authorization"
    """The header, which replaces any header of this name that the job sends."""
    scheme: Literal["bearer", "basic", "raw"] = "bearer"
    """The text before the secret in the header: `Bearer`, `Basic` (with `username`) or nothing."""
    username: str | None = Field(default=None, pattern=r"^[!-9;-~]{1,200}$")
    """The user name for `basic`; None: `x-access-token`, which Git hosts expect with a token."""

    @model_validator(mode="after")
    def _username_is_of_basic(self) -> Self:
        if self.username is not None and self.scheme != "basic":
            raise ValueError("username belongs to the scheme basic")
        return self

    def value(self, secret: str) -> str:
        """Return the value of the header.

        Args:
            secret: The value of the secret that it names.
        """
        if self.scheme == "bearer":
            return f"Bearer {secret}"
        if self.scheme == "basic":
            pair = f"{self.username or DEFAULT_USERNAME}:{secret}"
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        return secret


class CredentialDefinition(HeaderCredential):
    """One credential: a header that the worker's proxy adds to the requests of a job to a host."""

    host: Annotated[str, AfterValidator(_usable_host)]
    """One name of `network`, with `:port` if it is not 443; reached by HTTPS only."""
    methods: tuple[Annotated[str, AfterValidator(_usable_method)], ...] | None = None
    """The methods that are permitted; None: all."""
    paths: tuple[Annotated[str, AfterValidator(_usable_path)], ...] | None = None
    """The permitted paths, in which `*` matches any characters; None: all."""

    @property
    def address(self) -> tuple[str, int]:
        """The host's name and port."""
        name, _, port = self.host.partition(":")
        return name, int(port or HTTPS_PORT)

    def is_within(self, network: Iterable[str]) -> bool:
        """Return whether a list of hosts names this one.

        Args:
            network: The entries of `network`.
        """
        name, port = self.address
        spellings = {name, *(f"*.{name.split('.', n)[n]}" for n in range(1, name.count(".") + 1))}
        with_port = {f"{spelling}:{port}" for spelling in spellings}
        permitted = with_port | spellings if port == HTTPS_PORT else with_port
        return any(entry.lower() in permitted for entry in network)
