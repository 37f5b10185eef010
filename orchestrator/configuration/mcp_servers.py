"""The MCP servers of an agent definition: key `mcp_servers`, a list of these."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from orchestrator.jobs.spec import WireModel

DEFAULT_TIMEOUT_SECONDS = 60.0
"""For a server's start and for each call: what other MCP clients grant, so servers are made for
it."""

MAX_NAME_CHARACTERS = 32
"""Half of what a tool's name may have: the other half is the server's."""

MAX_TIMEOUT_SECONDS = 3600.0
"""A tool that takes longer should be asked again for what it has begun."""


def _usable_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a url begins with http:// or https:// and names a host")
    if parts.username or parts.password:
        raise ValueError(
            "a url holds no password; give it in headers, as ${NAME} of the environment"
        )
    return url


class McpServerDefinition(WireModel):
    """One server: at a `url`, reached from the worker, or a `command`, which runs inside the sandbox."""

    name: str = Field(pattern=r"^[A-Za-z](?:_?[A-Za-z0-9-])*$", max_length=MAX_NAME_CHARACTERS)
    """Begins the names of its tools, `<name>__<tool>`; so it has no `__` itself."""
    url: Annotated[str, AfterValidator(_usable_url)] | None = None
    transport: Literal["http", "sse"] | None = None
    """Of a `url`; None is `http`, MCP's streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    """`${NAME}` is taken from the environment of the process that connects. Never shown, so not
    dumped."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the environment of a `command`, literally: whoever works in the sandbox can read
    it."""
    tools: tuple[str, ...] | None = None
    """The tools to have, by the server's names; None gives all."""
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0, le=MAX_TIMEOUT_SECONDS)
    """For the start, and for each call."""

    @model_validator(mode="after")
    def _is_one_of_two_kinds(self) -> McpServerDefinition:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        if self.url is None and (self.transport or self.headers):
            raise ValueError("transport and headers belong to a url")
        if self.url is not None and self.env:
            raise ValueError("env belongs to a command")
        return self
