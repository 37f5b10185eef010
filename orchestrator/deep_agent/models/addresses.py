"""Where the requests of models may go: to the services' own hosts, and to configured addresses.

A model's name comes from jobs, and an answer from anywhere. Neither may lead a request to another
host, for example to what listens on a worker's own machine: an address that a client derives from
the name is refused, and so is a redirect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fanout.orchestrator.deep_agent.failures import ModelDenied

_DEFAULT_PORTS = {"http": 80, "https": 443}

_THIS_MACHINE = {"localhost", "::1"}
"""Other names of 127.0.0.1: clients write one for another."""

_ADDRESS_VARIABLE = re.compile(r"(?!FANOUT_).*_(?:BASE|URL|HOST|ENDPOINT|API)")
"""The names of variables with addresses, of whatever service: OPENAI_BASE_URL, AZURE_API_BASE,
OLLAMA_HOST, WATSONX_URL. Those of fanout itself are none of a model's."""


@dataclass(frozen=True)
class Origin:
    """A server: how it is spoken to, its host and its port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, address: str) -> Origin | None:
        """Return the server of an address of HTTP; None for what is none."""
        try:
            parts = urlsplit(address.strip())
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        except ValueError:
            return None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            return None
        host = parts.hostname.lower().rstrip(".")
        return cls(parts.scheme, "127.0.0.1" if host in _THIS_MACHINE else host, port)

    def leads_to(self, other: Origin) -> bool:
        """Return whether another server is the same, or the same with TLS at the usual ports."""
        is_secured = (self.port, other.port) == (80, 443) and other.scheme == "https"
        return self.host == other.host and (
            (self.scheme, self.port) == (other.scheme, other.port) or is_secured
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


def configured_origins() -> Iterator[Origin]:
    """Yield the servers whose addresses are set in this process's environment."""
    for name, value in os.environ.items():
        if _ADDRESS_VARIABLE.fullmatch(name) and value:
            address = value if "://" in value else f"https://{value}"
            if (origin := Origin.of(address)) is not None:
                yield origin


@dataclass
class Destinations:
    """Where the requests of one model may go.

    Args:
        origins: The servers.
        hosts: Patterns of hosts that are asked with HTTPS; see `providers.hosts.HOSTS`.
    """

    origins: tuple[Origin, ...] = ()
    hosts: tuple[str, ...] = ()
    refusal: ModelDenied | None = field(default=None, init=False)
    """Why the newest request was refused; None if it was not. Clients hide it in their errors."""

    def check(self, address: str) -> None:
        """Refuse a request to another server.

        Raises:
            ModelDenied: The address is none of the model's.
        """
        self.refusal = None
        asked = Origin.of(address)
        if asked is not None and self._include(asked):
            return
        self.refusal = ModelDenied(
            f"A model's request to {asked or 'an address that is no server'} was not sent: this is "
            "neither its service's own address nor one that is set in the environment of the "
            "worker, as PROVIDER_API_BASE."
        )
        raise self.refusal

    def _include(self, asked: Origin) -> bool:
        if any(origin.leads_to(asked) for origin in self.origins):
            return True
        named = (
            asked.host if asked.port == _DEFAULT_PORTS["https"] else f"{asked.host}:{asked.port}"
        )
        return asked.scheme == "https" and _matches(named, self.hosts)


current: ContextVar[Destinations | None] = ContextVar("current", default=None)
"""Where the requests of the running call may go; None: anywhere, it is no call of a model."""


@contextmanager
def limited_to(destinations: Destinations) -> Iterator[None]:
    """Let the requests in the context go to some servers only.

    Raises:
        ModelDenied: One was to go to another server, and the call failed for it.
    """
    token = current.set(destinations)
    try:
        yield
    except Exception:
        if destinations.refusal is not None:
            raise destinations.refusal from None
        raise
    finally:
        current.reset(token)


def _matches(host: str, patterns: Iterable[str]) -> bool:
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", "[a-z0-9_-]+"), host) for pattern in patterns
    )
