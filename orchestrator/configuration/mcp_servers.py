"""The MCP servers of an agent definition: the entries of its key `mcp_servers`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from fanout.orchestrator.configuration.credentials import usable_url
from fanout.orchestrator.jobs.spec import WireModel

DEFAULT_TIMEOUT_SECONDS = 60.0
"""For a server's start and for each call: the time of other MCP clients, which servers expect."""

MAX_NAME_CHARACTERS = 32
"""Half of the maximum of a tool's full name; the other half is for the tool's own name."""

MAX_TIMEOUT_SECONDS = 3600.0
"""A tool that takes longer should offer a call that polls for its result."""


class McpServerDefinition(WireModel):
    """One server: at a `url`, which the worker connects to, or a `command` inside the sandbox."""

    name: str = Field(pattern=r"^[A-Za-z](?:_?[A-Za-z0-9-])*$", max_length=MAX_NAME_CHARACTERS)
    """The beginning of its tools' names, `<name>__<tool>`; so it contains no `__`."""
    url: Annotated[str, AfterValidator(usable_url)] | None = None
    transport: Literal["http", "sse"] | None = None
    """Of a `url`; None: `http`, MCP's streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    """`${NAME}` is replaced from the environment of the process that connects. Never shown or
    dumped."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the environment of a `command`, literally; the agent can read it."""
    tools: tuple[str, ...] | None = None
    """The tools to use, by the server's names; None: all."""
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
