"""Translation of the exceptions of providers' clients into our failures.

They are recognized by status, code or class, and by their message if nothing else distinguishes
them. The clients are optional packages, so their exceptions are known by attributes and names only.
"""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from fanout.orchestrator.deep_agent.failures import (
    ModelContextExceeded,
    ModelDenied,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
)
from fanout.orchestrator.shortening import one_line

RETRYABLE_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Time-outs, conflicts, rate limits, server errors; 529 is Anthropic's `overloaded`."""

RATE_LIMITED_STATUS = 429
"""Too many requests or tokens; the service itself is available."""

TOO_LARGE_STATUS = 413
"""A request that is too large for the service."""

DENIED_STATUS = frozenset({401, 403, 404})
"""No valid key, no right to use the model, no such model."""

_NO_CREDENTIALS = frozenset({"DefaultCredentialsError", "RefreshError"})
"""The names of google.auth's exceptions for credentials that are missing or no longer valid."""

_INVALID_KEY_MESSAGE = re.compile(
    r"API[ _]key not valid|API_KEY_INVALID|could not resolve auth", re.IGNORECASE
)
"""For Gemini, which answers a wrong key with 400, and for clients that have no key at all."""

_RATE_LIMITED_CODES = frozenset({"rate_limit_error", "rate_limit_exceeded"})

_RETRYABLE_CODES = _RATE_LIMITED_CODES | {
    "api_error",  # anthropic
    "overloaded_error",
    "timeout_error",
    "server_error",  # openai
    "server_overloaded",
}
"""The codes of errors in a stream that began with status 200."""

_TOO_LONG_CODES = frozenset({"context_length_exceeded", "request_too_large"})

_TOO_LONG_MESSAGE = re.compile(
    r"input token count .*exceeds the maximum"  # gemini: INVALID_ARGUMENT, as for all mistakes
    r"|prompt is too long|exceed context limit"  # anthropic: as above
    r"|maximum context length",  # services that copy OpenAI's, without its code
    re.IGNORECASE,
)
"""For rejected requests whose status, code and class say only that they are invalid."""

_UNREACHED = frozenset(
    {
        "APIConnectionError",  # openai, anthropic, litellm
        "APITimeoutError",
        "APIResponseValidationError",  # an answer that is no JSON comes from a proxy in between
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "TransportError",  # httpx, google.auth
        "JSONDecodeError",  # the same as above, from the others
        "UnknownApiResponseError",  # google-genai
    }
)
"""The names of exceptions and their base classes for a service that was not reached."""

_KEY_VARIABLES = ("_API_KEY", "_AUTH_TOKEN", "_ACCESS_TOKEN", "_SECRET_ACCESS_KEY")
"""Endings of the names of variables that contain a provider's secret."""
_MIN_SECRET_CHARACTERS = 8
"""A shorter value is a placeholder for a key, and may be part of any word."""
_LITELLM_HEAD = re.compile(r"^litellm\.(\w+: )+(\w+Exception - )?")
"""Up to three class names before the service's own message."""
_AUTHORIZATION = re.compile(r"(?i)(bearer |x-api-key\W+|x-goog-api-key\W+)[^\s'\",}]+")

MAX_MESSAGE_CHARACTERS = 300
"""The length of a provider's message in our failure."""


class ReplyFailed(Exception):
    """A service ended its own reply with an error.

    Args:
        message: The service's message.
        code: The service's code for the reason.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def translated(error: Exception, model: str) -> ModelFailed:
    """Return a provider's exception as one of our failures, without the keys that it may quote.

    Args:
        error: The exception of a provider's client.
        model: The model's name, for the message.
    """
    if isinstance(error, ModelFailed):
        return error
    status, codes = _status(error), _codes(error)
    message = _without_keys(_message(error))
    described = f"{status}: {message}" if status else f"{type(error).__name__}: {message}"
    if _is_too_long(error, status, codes, message):
        return ModelContextExceeded(f"The request is too long for {model} ({described}).")
    is_retryable = status in RETRYABLE_STATUS or (
        status in {None, 200} and (codes & _RETRYABLE_CODES or _is_unreached(error))
    )
    if is_retryable:
        return ModelUnavailable(f"{model} does not answer, after all retries ({described}).")
    if _is_denied(error, status, message):
        return ModelDenied(
            f"{model} refused the request ({described}). Check the model's name and its key."
        )
    return ModelRefused(f"{model} refused the request ({described}).")


def is_rate_limited(error: Exception) -> bool:
    """Return whether the service rejected the request for its rate limit."""
    status = _status(error)
    return status == RATE_LIMITED_STATUS or (
        status in {None, 200} and bool(_codes(error) & _RATE_LIMITED_CODES)
    )


def asked_for_seconds(error: Exception) -> float | None:
    """Return the number of seconds that the service asks to wait, or None."""
    response = getattr(error, "response", None)
    headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
    value = headers.get("retry-after") or headers.get("Retry-After")
    if value:
        with contextlib.suppress(ValueError):
            return float(value)
        with contextlib.suppress(ValueError):
            return (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    found = re.search(
        r"retryDelay['\"]?:\s*['\"](\d+(?:\.\d+)?)s", str(getattr(error, "details", ""))
    )
    return float(found[1]) if found else None


def _is_too_long(error: Exception, status: int | None, codes: frozenset[str], message: str) -> bool:
    is_named_so = codes & _TOO_LONG_CODES or _is_a(error, {"ContextWindowExceededError"})
    if status == TOO_LARGE_STATUS or is_named_so:
        return True
    return status in {200, 400} and _TOO_LONG_MESSAGE.search(message) is not None


def _is_denied(error: Exception, status: int | None, message: str) -> bool:
    if status in DENIED_STATUS or _is_a(error, _NO_CREDENTIALS):
        return True
    return status in {None, 400} and _INVALID_KEY_MESSAGE.search(message) is not None


def _message(error: Exception) -> str:
    """Return the service's own message, if it can be found, on one line."""
    message = _error_object(error).get("message") or getattr(error, "message", None) or error
    return _LITELLM_HEAD.sub("", one_line(str(message)))


def _error_object(error: Exception) -> dict[str, Any]:
    """Return the object `error` in the body of a response of OpenAI or Anthropic."""
    body = getattr(error, "body", None)
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body


def _codes(error: Exception) -> frozenset[str]:
    """Return the service's codes for the error."""
    found = _error_object(error)
    named = (found.get("code"), found.get("type"), getattr(error, "code", None))
    return frozenset(code for code in named if isinstance(code, str))


def _without_keys(message: str) -> str:
    """Hide keys in a message, which some services quote, because it goes into logs and results."""
    for name, value in os.environ.items():
        if name.endswith(_KEY_VARIABLES) and len(value) >= _MIN_SECRET_CHARACTERS:
            message = message.replace(value, "(hidden)")
    return _AUTHORIZATION.sub(r"\1(hidden)", message)[:MAX_MESSAGE_CHARACTERS]


def _is_unreached(error: Exception) -> bool:
    return isinstance(error, (ConnectionError, TimeoutError)) or _is_a(error, _UNREACHED)


def _is_a(error: Exception, names: frozenset[str] | set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    for holder, name in (
        (error, "status_code"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None
