"""The failures of a deep agent.

    ToolMistake                the agent called a tool wrongly; the model gets its text
    ApprovalRequired           a rule wants a person to be asked; the call becomes a request
    ModelFailed                no reply from the model
    ├── ModelUnresponsive      (retryable) overloaded, rate-limited or not reached, after retries
    │   └── ModelReplyUnusable (retryable) it answered, but with no reply that can be used
    ├── ModelRefused           the service rejected the request; no model of the list is asked
    │   └── ModelDenied        unknown model, or a key that may not use it; the next one is asked
    │       └── ModelQuotaUsedUp   the account has no quota or credit left
    ├── ModelNotOpen            it was not asked, or not again: its quota is used up, or it is away
    ├── ModelContextExceeded   the request is longer than the model's context window
    │   └── ModelContextSuspected  the service rejected it, perhaps because it is too long
    ├── BudgetUsedUp           a budget that runs share has no room for the request
    ├── UnknownGuardedTool     interrupt_on names a tool that the agent does not have
    ├── AmbiguousTool          two tools have the same name
    └── ScriptFailed           a scripted model has no matching reply
    McpServerFailed            an MCP server did not start, or lacks a tool
    └── McpServerUnresponsive  (retryable) it was not reached
    ModelNotConfigured         a model's name, key or package is missing; raised before any call

`retryable`, an attribute of the class, says whether a later run may succeed. A ModelFailed or a
McpServerFailed ends the run: `Runner.run_async` raises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol


class ToolMistake(Exception):
    """The model called a tool wrongly; the message, for the model, says how to correct the call."""


class ApprovalRequired(Exception):
    """A person has to be asked before a call may go on; the message says for what."""


class ModelFailed(Exception):
    """The model gave no reply."""

    retryable: ClassVar[bool] = False
    status: int | None = None
    """The HTTP status of the service's answer, if it gave one."""
    wait_seconds: float | None = None
    """The time after which the service may be asked again, if it says so."""


class ModelUnresponsive(ModelFailed):
    """The model's service did not answer, after all retries and fallbacks."""

    retryable = True


class ModelReplyUnusable(ModelUnresponsive):
    """The service answered with something from which no reply can be read."""


class ModelRefused(ModelFailed):
    """The model's service rejected the request; a retry does not help."""


class ModelDenied(ModelRefused):
    """The service does not have the model, or the key may not use it; another model may answer."""


class ModelQuotaUsedUp(ModelDenied):
    """The account's quota or credit is used up: no wait of minutes helps, another model may."""


class ClosedAccess(Protocol):
    """A model that is not to be asked now."""

    @property
    def name(self) -> str:
        """Its name as requested."""

    @property
    def until(self) -> float:
        """When it is tried again, in seconds since the epoch."""

    @property
    def sentence(self) -> str:
        """What an agent waits for, as a text for people."""


class ModelNotOpen(ModelFailed):
    """None of the models may be asked before some time: `closed` says which, why and until when.

    Args:
        closed: The models, the one first that is tried first.
    """

    def __init__(self, closed: Sequence[ClosedAccess]) -> None:
        super().__init__(f"It waits for {closed[0].sentence}.")
        self.closed = tuple(closed)


class ModelContextExceeded(ModelFailed):
    """The request does not fit into the model's context window; a shorter one may."""


class ModelContextSuspected(ModelContextExceeded):
    """The service rejected the request for a reason that may be its length; a shorter one shows."""


class BudgetUsedUp(ModelFailed):
    """A budget has no room for the request; the message says which limit is reached."""


class UnknownGuardedTool(ModelFailed):
    """A tool that a person is to approve does not exist, so nothing would be guarded."""


class AmbiguousTool(ModelFailed):
    """Two tools have the same name, so one of them, perhaps the guarded one, would be hidden."""


class ScriptFailed(ModelFailed):
    """A scripted model's file is invalid, or has no reply for this turn."""


class McpServerFailed(Exception):
    """An MCP server did not start: it ended, does not speak MCP, or lacks a requested tool."""

    retryable: ClassVar[bool] = False


class McpServerUnresponsive(McpServerFailed):
    """An MCP server was not reached, or did not answer in time."""

    retryable = True


class ModelNotConfigured(ValueError):
    """A model's name is unknown, or its key or package is missing; the message says which."""
