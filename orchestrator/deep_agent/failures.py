"""What goes wrong in a deep agent, drawn once.

ToolMistake               the agent called a tool wrongly; its text goes to the model and the run goes on
ModelFailed               no reply from the model; `retryable` says whether asking later may help
├── ModelUnavailable      overloaded, rate-limited, or not reached, after all retries       retryable
├── ModelRefused          the service refused the request: wrong key, unknown model, bad request
└── ScriptFailed          a scripted model has no reply that fits
ModelNotConfigured        a model's name, key or package is missing; raised before any call

A ModelFailed ends the run: `Runner.run_async` raises it.
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


class ScriptFailed(ModelFailed):
    """A scripted model's file is wrong, or has no reply for this turn."""


class ModelNotConfigured(ValueError):
    """A model cannot be used as named; the text says what is missing."""
