"""A credential that a sandbox uses and never has."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A header that the proxy puts into the requests to one host, outside of the sandbox."""

    host: str
    port: int
    secret: str
    """The secret's name, for reports."""
    header: str
    value: SecretStr
    """The header's whole value."""
    hidden: tuple[SecretStr, ...]
    """The texts that a response must not carry into the sandbox: the secret in its spellings."""
    methods: tuple[str, ...] | None = None
    """The permitted methods; None: all."""
    paths: tuple[str, ...] | None = None
    """The permitted paths, `*` standing for any characters; None: all."""
