"""What the providers' clients raise, told as ours.

By status, code or class, by words if nothing else tells.

The clients are optional packages, so their exceptions are known by their attributes and names.
"""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from orchestrator.deep_agent.failures import (
    ModelContextExceeded,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
)
from orchestrator.shortening import one_line

RETRYABLE_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Time-outs, conflicts, rate limits, server errors; 529 is Anthropic's `overloaded`."""

RATE_LIMITED_STATUS = 429
"""Too many requests or tokens in a time; the service itself is well."""

TOO_LARGE_STATUS = 413
"""A request that is too large for the service, whatever it says besides."""

_RATE_LIMITED_CODES = frozenset({"rate_limit_error", "rate_limit_exceeded"})

_RETRYABLE_CODES = _RATE_LIMITED_CODES | {
    "api_error",  # anthropic
    "overloaded_error",
    "timeout_error",
    "server_error",  # openai
    "server_overloaded",
}
"""What a service says in a stream that it began with status 200."""

_TOO_LONG_CODES = frozenset({"context_length_exceeded", "request_too_large"})

_TOO_LONG_WORDS = re.compile(
    r"input token count .*exceeds the maximum"  # gemini: INVALID_ARGUMENT, as for all mistakes
    r"|prompt is too long|exceed context limit"  # anthropic: invalid_request_error, as for all mistakes
    r"|maximum context length",  # services that copy OpenAI's, without its code
    re.IGNORECASE,
)
"""Looked for in refused requests of which status, code and class tell no more than that."""

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
"""By name, in the error's ancestry."""

_KEY_VARIABLES = ("_API_KEY", "_AUTH_TOKEN", "_ACCESS_TOKEN", "_SECRET_ACCESS_KEY")
"""How the names of variables that hold a provider's secret end."""
_MIN_SECRET_CHARACTERS = 8
"""A shorter value is a stand-in for a key, and may be part of any word."""
_LITELLM_HEAD = re.compile(r"^litellm\.(\w+: )+(\w+Exception - )?")
"""Up to three names of classes before the service's own sentence."""
_AUTHORIZATION = re.compile(r"(?i)(bearer |x-api-key\W+|x-goog-api-key\W+)[^\s'\",}]+")

MAX_MESSAGE_CHARACTERS = 300
"""How much of a provider's own words goes into our error."""


class ReplyFailed(Exception):
    """A service ended its own reply; `code` is what it calls the reason."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def translated(error: Exception, model: str) -> ModelFailed:
    """A provider's error as ours."""
    if isinstance(error, ModelFailed):
        return error
    status, codes = _status(error), _codes(error)
    words = _without_keys(_words(error))
    if _is_too_long(error, status, codes, words):
        return ModelContextExceeded(
            f"The request is too long for {model} ({_said(error, status, words)})."
        )
    said = _said(error, status, words)
    is_ours_to_wait = status in RETRYABLE_STATUS or (
        status in {None, 200} and (codes & _RETRYABLE_CODES or _is_unreached(error))
    )
    if is_ours_to_wait:
        return ModelUnavailable(f"{model} does not answer, after all retries ({said}).")
    return ModelRefused(f"{model} refused the request ({said}).")


def is_rate_limited(error: Exception) -> bool:
    """Whether the service refused because it was asked too much in a time; it is well otherwise."""
    status = _status(error)
    return status == RATE_LIMITED_STATUS or (
        status in {None, 200} and bool(_codes(error) & _RATE_LIMITED_CODES)
    )


def asked_for_seconds(error: Exception) -> float | None:
    """The wait that the service asks for."""
    headers = (
        getattr(error, "headers", None)
        or getattr(getattr(error, "response", None), "headers", None)
        or {}
    )
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


def _is_too_long(error: Exception, status: int | None, codes: frozenset[str], words: str) -> bool:
    if (
        status == TOO_LARGE_STATUS
        or codes & _TOO_LONG_CODES
        or _is_a(error, {"ContextWindowExceededError"})
    ):
        return True
    return status in {200, 400} and _TOO_LONG_WORDS.search(words) is not None


def _said(error: Exception, status: int | None, words: str) -> str:
    return f"{status}: {words}" if status else f"{type(error).__name__}: {words}"


def _words(error: Exception) -> str:
    """The service's own sentence where it can be found, in one line."""
    told = _error_object(error).get("message") or getattr(error, "message", None) or error
    return _LITELLM_HEAD.sub("", one_line(str(told)))


def _error_object(error: Exception) -> dict[str, Any]:
    """What OpenAI and Anthropic call `error` in a refusal's body."""
    body = getattr(error, "body", None)
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body


def _codes(error: Exception) -> frozenset[str]:
    """The words by which a service names what happened."""
    found = _error_object(error)
    named = (found.get("code"), found.get("type"), getattr(error, "code", None))
    return frozenset(code for code in named if isinstance(code, str))


def _without_keys(words: str) -> str:
    """Some services quote the key that they refuse, and an error's text goes into logs and results."""
    for name, value in os.environ.items():
        if name.endswith(_KEY_VARIABLES) and len(value) >= _MIN_SECRET_CHARACTERS:
            words = words.replace(value, "(hidden)")
    return _AUTHORIZATION.sub(r"\1(hidden)", words)[:MAX_MESSAGE_CHARACTERS]


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
