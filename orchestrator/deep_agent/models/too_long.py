"""Whether a service rejected a request because it is too long, where its code does not say so.

We know what was sent: its size, and what passed before it. A guess costs one attempt with a shorter
request; if that fails as well, the service's own words end the run.
"""

from __future__ import annotations

import re

from google.adk.models.llm_request import LlmRequest

from fanout.orchestrator.deep_agent.failures import (
    ModelContextSuspected,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
)
from fanout.orchestrator.deep_agent.models.errors import status_of, words_of
from fanout.orchestrator.deep_agent.models.facts import context_window
from fanout.orchestrator.deep_agent.models.size import input_tokens, request_tokens

NEAR_WINDOW_SHARE = 0.9
"""Share of the window from which an estimate may be above it: it is made from characters."""

REJECTED_STATUS = frozenset({400, 422})
"""An invalid request."""

FAILED_STATUS = frozenset({None, 200, 500})
"""Servers of local models fail at a request that is too long (Ollama, llama.cpp), and proxies hide
the status."""

OTHER_REASONS = frozenset({408, 429})
"""The service says itself what is wrong, whatever the size: it waits no longer, or too many
requests were sent."""

_SUBJECT = r"(?:token|context|prompt|input|sequence|length)s?\b"
_EXCESS = (
    r"(?:exceed|overflow|too (?:long|large|many|big)|(?:long|larg|great)er than|more than|maximum"
    r"|at most|limit|not enough|does not fit|must (?:be|have) (?:<|less|short))"
)
_ABOUT_LENGTH = re.compile(
    rf"{_SUBJECT}.{{0,80}}{_EXCESS}|{_EXCESS}.{{0,80}}{_SUBJECT}", re.IGNORECASE
)
"""What is measured, and that it is too much, in any words."""


class PassedRequests:
    """The requests of one model object that were answered, to compare rejected ones with."""

    def __init__(self) -> None:
        self._messages: dict[str, int] = {}
        """The number of messages in the last request that was answered, by the model's name."""

    def add(self, name: str, request: LlmRequest) -> None:
        """Note a request that was answered."""
        self._messages[name] = len(request.contents)

    def suspected(
        self, failure: ModelFailed, error: Exception, name: str, request: LlmRequest
    ) -> ModelFailed:
        """Return the failure, or a ModelContextSuspected if the request may have been too long.

        Args:
            failure: What the error means without a look at the request.
            error: The exception of the provider's client.
            name: The model's name.
            request: The request that failed.
        """
        status, words = status_of(error), words_of(error)
        is_rejected = status in REJECTED_STATUS and type(failure) is ModelRefused
        is_failed = status in FAILED_STATUS and type(failure) in {ModelUnavailable, ModelRefused}
        is_suspect = (is_rejected or is_failed) and _ABOUT_LENGTH.search(words)
        is_long = is_rejected and (_is_near_window(request) or self._grew(name, request))
        is_unclear = status is not None and status not in OTHER_REASONS
        is_unclear = is_unclear and type(failure) in {ModelUnavailable, ModelRefused}
        if is_suspect or is_long or (is_unclear and _is_above_window(request)):
            described = f"{status}: {words}" if status else words
            return ModelContextSuspected(
                f"{request.model} refused the request ({described}), perhaps because it is too "
                "long."
            )
        return failure

    def _grew(self, name: str, request: LlmRequest) -> bool:
        """Return whether a shorter request passed; not with media, which may be the reason."""
        passed = self._messages.get(name)
        media = any(part.inline_data for each in request.contents for part in each.parts or ())
        return passed is not None and passed < len(request.contents) and not media


def _is_above_window(request: LlmRequest) -> bool:
    """Return whether a request is larger than the window, even by an estimate that is low."""
    window = context_window(request.model or "")
    return window is not None and input_tokens(request) > window


def _is_near_window(request: LlmRequest) -> bool:
    window = context_window(request.model or "")
    return window is not None and request_tokens(request) >= window * NEAR_WINDOW_SHARE
