"""An MCP server as an agent uses it.

What it is called, how it is reached, which of its tools are wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

DEFAULT_TIMEOUT_SECONDS = 60.0
"""For the start and for each call: what other MCP clients grant, so servers are made for it."""

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A place in a header's value that takes a variable of the environment."""


class ServerProcess(Protocol):
    """A running server's standard input and output. EOFError, with how it ended, once it has."""

    async def send(self, data: bytes) -> None:
        """Write to its input."""
        ...

    async def receive(self) -> bytes:
        """The next of its output, at least one byte."""
        ...

    @property
    def error_output(self) -> bytes:
        """What it has complained of so far, bounded."""
        ...


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """One server: either at a `url`, or started by `open_process` where it may run."""

    name: str
    """Begins the names of its tools: letters, digits, `_` and `-`."""
    url: str | None = None
    transport: Literal["http", "sse"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; they may hold keys."""
    open_process: Callable[[], AbstractAsyncContextManager[ServerProcess]] | None = None
    tools: Collection[str] | None = None
    """The tools to have, by the server's names for them; None gives all."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """For the start, and for each call."""


class RemoteDefinition(Protocol):
    """What an agent's definition says of a server at a URL."""

    @property
    def name(self) -> str: ...  # noqa: D102 - as in McpServer, all of them
    @property
    def url(self) -> str | None: ...  # noqa: D102
    @property
    def transport(self) -> Literal["http", "sse"] | None: ...  # noqa: D102
    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def tools(self) -> Collection[str] | None: ...  # noqa: D102
    @property
    def timeout_seconds(self) -> float: ...  # noqa: D102


def remote_server(definition: RemoteDefinition, environment: Mapping[str, str]) -> McpServer:
    """The server of a definition; `${NAME}` in its headers is taken from the environment.

    Raises:
        ValueError: a variable is not set, or holds what no header can.
    """
    return McpServer(
        name=definition.name,
        url=definition.url,
        transport=definition.transport or "http",
        headers={
            header: _filled(definition.name, header, value, environment)
            for header, value in definition.headers.items()
        },
        tools=definition.tools,
        timeout_seconds=definition.timeout_seconds,
    )


def _filled(server: str, header: str, value: str, environment: Mapping[str, str]) -> str:
    missing = sorted({name for name in VARIABLE.findall(value) if not environment.get(name)})
    if missing:
        raise ValueError(
            f"mcp server {server} did not start: its header {header} needs {', '.join(missing)}, "
            "which this process's environment does not have."
        )
    filled = VARIABLE.sub(lambda found: environment[found[1]], value)
    if not (filled.isascii() and filled.isprintable()):  # the HTTP client's error would quote it
        raise ValueError(
            f"mcp server {server} did not start: its header {header} would have a line end or another "
            "character that a header cannot have."
        )
    return filled
