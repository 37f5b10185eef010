"""The definition of an MCP server for an agent: its name, how to reach it, which tools to use."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

DEFAULT_TIMEOUT_SECONDS = 60.0
"""The time for the start and for each call: the default of other MCP clients, which servers expect.
"""

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A reference to an environment variable in a header's value."""


class ServerProcess(Protocol):
    """A running server's standard input and output.

    Every method raises EOFError, with the reason, when the process has ended.
    """

    async def send(self, data: bytes) -> None:
        """Write to its standard input."""

    async def receive(self) -> bytes:
        """Return the next bytes of its standard output, at least one."""

    @property
    def error_output(self) -> bytes:
        """Its stderr so far, limited in size."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """One server: either at a `url`, or a process started by `open_process`."""

    name: str
    """The prefix of its tools' names: letters, digits, `_` and `-`."""
    prefixed: bool = True
    """Whether its tools' names get the prefix; without, they must differ from all others."""
    url: str | None = None
    transport: Literal["http", "sse"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; they may contain keys."""
    open_process: Callable[[], AbstractAsyncContextManager[ServerProcess]] | None = None
    tools: Collection[str] | None = None
    """The tools to use, by the server's names; all when None."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """The time for the start, and for each call."""

    def with_environment(self, environment: Mapping[str, str]) -> McpServer:
        """Return the same server with `${NAME}` in its headers replaced by variables.

        Raises:
            ValueError: A variable is not set, or its value is not valid in a header.
        """
        headers = {
            header: _filled(self.name, header, value, environment)
            for header, value in self.headers.items()
        }
        return replace(self, headers=headers)


def _filled(server: str, header: str, value: str, environment: Mapping[str, str]) -> str:
    missing = sorted({name for name in VARIABLE.findall(value) if not environment.get(name)})
    if missing:
        raise ValueError(
            f"mcp server {server} did not start: its header {header} needs {', '.join(missing)}, "
            "which this process's environment does not have."
        )
    filled = VARIABLE.sub(lambda found: environment[found[1]], value)
    # The HTTP client's own error would quote it.
    if not (filled.isascii() and filled.isprintable()):
        raise ValueError(
            f"mcp server {server} did not start: its header {header} would have a line end or "
            "another character that a header cannot have."
        )
    return filled
