"""What goes wrong in a deep agent, drawn once.

ToolMistake               the agent called a tool wrongly; its text goes to the model and the run
goes on ModelFailed               no reply from the model; `retryable` says whether asking later may
help ├── ModelUnavailable      overloaded, rate-limited, or not reached, after all retries
retryable ├── ModelRefused          the service refused the request: wrong key, unknown model, bad
request ├── ModelContextExceeded  the request is longer than the model's context window ├──
UnknownGuardedTool    interrupt_on names a tool that the agent does not have └── ScriptFailed
a scripted model has no reply that fits McpServerFailed           an MCP server did not start, or
lacks a tool; `retryable` as above └── McpServerUnavailable  it was not reached
retryable ModelNotConfigured        a model's name, key or package is missing; raised before any
call

A ModelFailed or a McpServerFailed ends the run: `Runner.run_async` raises it.
"""

from __future__ import annotations

from typing import ClassVar


class ToolMistake(Exception):
    """The agent's own mistake, in words that say how to mend it."""


class ModelFailed(Exception):
    """The model gave no reply."""

    retryable: ClassVar[bool] = False


class ModelUnavailable(ModelFailed):
    """The model's service did not answer, after all retries and fallbacks."""

    retryable = True


class ModelRefused(ModelFailed):
    """The model's service refused the request; asking again does not help."""


class ModelContextExceeded(ModelFailed):
    """The request does not fit into the model's context window; a shorter one may."""


class UnknownGuardedTool(ModelFailed):
    """A tool that a person is to approve does not exist, so nothing would be approved."""


class ScriptFailed(ModelFailed):
    """A scripted model's file is wrong, or has no reply for this turn."""


class McpServerFailed(Exception):
    """An MCP server did not start.

    It ended, is no such server, or lacks a tool that it is wanted for.
    """

    retryable: ClassVar[bool] = False


class McpServerUnavailable(McpServerFailed):
    """An MCP server was not reached, or did not answer in time."""

    retryable = True


class ModelNotConfigured(ValueError):
    """A model cannot be used as named; the text says what is missing."""
