"""Translation of the exceptions of providers' clients into our failures.

They are recognized by status, code or class, and by their message if nothing else distinguishes
them. The clients are optional packages, so their exceptions are known by attributes and names only.
Where a service's code does not say that a request is too long, `PassedRequests` compares it with
those that passed: a wrong guess costs one attempt with a shorter request, and if that fails as
well, the service's own words end the run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.genai import types

from ...shortening import error_text, one_line
from ..failures import (
    ModelContextExceeded,
    ModelContextSuspected,
    ModelDenied,
    ModelFailed,
    ModelQuotaUsedUp,
    ModelRefused,
    ModelReplyUnusable,
    ModelUnresponsive,
)
from .facts import context_window
from .tokens import input_tokens, request_tokens

RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
"""Time-outs, conflicts and rate limits; server errors are retried as well, whatever their number:
services and the proxies in front of them have some of their own, such as 520 to 530."""

RATE_LIMITED_STATUS = 429
"""Too many requests or tokens; the service itself is available."""

REDIRECT_STATUS = frozenset({300, 301, 302, 303, 307, 308})
"""Another address, which a model's server does not choose: it may be one of the worker's own."""

TOO_LARGE_STATUS = 413
"""A request that is too large for the service."""

UNPAID_STATUS = 402
"""Payment required: the account has no credit."""

DENIED_STATUS = frozenset({401, 403, 404, 405})
"""No valid key, no right to use the model, no such model, no model's service at that path."""

_OF_PATH = frozenset({404, 405})
"""What servers answer at a path that they do not have, unless the model is what they lack."""

QUOTA_WAIT_SECONDS = 3_600.0
"""A service that asks to wait longer than this has a quota that is used up, not a rate."""

_NO_CREDENTIALS = frozenset({"DefaultCredentialsError", "RefreshError"})
"""The names of google.auth's exceptions for credentials that are missing or no longer valid."""

_INVALID_KEY_MESSAGE = re.compile(
    r"API[ _]key not valid|API_KEY_INVALID|could not resolve auth", re.IGNORECASE
)
"""Said by Gemini, which answers a wrong key with 400, and by clients without a key."""

_UNKNOWN_MODEL = re.compile(
    r"\bmodel\b.{0,80}(?:does not exist|not exist|not found|is invalid|decommissioned|retired)"
    r"|(?:invalid|unknown|no such|not a valid) model\b|\bmodel_?not_?found\b",
    re.IGNORECASE,
)
"""Said by services that answer the name of a model that they do not have with 400 or 422."""

_RATE_LIMITED_CODES = frozenset({"rate_limit_error", "rate_limit_exceeded"})

_RETRYABLE_CODES = _RATE_LIMITED_CODES | {
    "api_error",  # anthropic
    "overloaded_error",
    "timeout_error",
    "server_error",  # openai
    "server_overloaded",
}
"""The codes of errors in a stream that began with status 200."""

_QUOTA_CODE = re.compile(
    r"quota|billing|balance|credit|insufficient_funds|budget|usage_limit|arrear|overdue",
    re.IGNORECASE,
)
"""Part of a code for an account that has no quota or credit left."""

_RATE_CODE = re.compile(r"throttl|rate.?limit", re.IGNORECASE)
"""Part of a code for a rate, which may be called a quota as well."""

_QUOTA_MESSAGE = re.compile(
    r"credit balance|billing|\bcredits?\b|insufficient (?:balance|funds|quota)|payment required"
    r"|(?:usage|spend(?:ing)?|hard) limits?\b|exceeded your .{0,20}quota|budget has been exceeded"
    r"|(?:\bper |/ ?)(?:day|week|month)\b|\b(?:dai|week|month)ly\b",
    re.IGNORECASE,
)
"""Messages of services that report a used up quota with the status of a rate limit or of an invalid
request: Anthropic's "credit balance is too low" is a 400, as all mistakes are."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
"""A part of a duration; of units that are written out, the first letter counts."""

_RESETS_IN = re.compile(
    r"(?:(?:resets?|try again|retry|available again|renews?)\s+(?:in|after)|please wait)\s+"
    r"(?P<in>\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)[a-z]*(?:[\s,]*(?:and\s+)?\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)[a-z]*)*)",
    re.IGNORECASE,
)
"""What messages say of when a quota is filled up again: "resets in 5 h"."""

_EPOCH_SECONDS = 1e9
"""A header with a larger number has a time since the epoch, not a duration."""

_EPOCH_MILLISECONDS = 1e12
"""One with a number as large as this counts it in milliseconds."""

_LONG_QUOTA = re.compile(r"Per(?:Day|Week|Month)", re.IGNORECASE)
"""Parts of the name of a violated quota of Gemini that is available again hours later."""

_TOO_LONG_CODES = frozenset(
    {
        "context_length_exceeded",  # openai, and most services that copy its interface
        "context_window_exceeded",
        "exceed_context_size_error",  # llama.cpp
        "model_context_window_exceeded",
        "prompt_too_long",
        "request_too_large",  # anthropic
    }
)

_TOO_LARGE_MESSAGE = re.compile(r"request too large", re.IGNORECASE)
"""What OpenAI says with 429 of a request that is larger than what a minute allows."""

_UNREACHED = frozenset(
    {
        "APIConnectionError",  # openai, anthropic, litellm
        "APITimeoutError",
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "TransportError",  # httpx, google.auth
    }
)
"""The names of exceptions and their base classes for a service that was not reached."""

_NO_JSON = frozenset(
    {
        "APIResponseValidationError",  # openai, anthropic
        "JSONDecodeError",  # the others
        "UnknownApiResponseError",  # google-genai
    }
)
"""The same for an answer that is no JSON: it comes from a proxy in between, or from no model's
service at all."""

_PYTHON_TEXT = re.compile(
    r"NoneType|Traceback \(most|' object (?:has no|is not|does not|cannot)|validation errors? for"
    r"|indices must be|unsupported operand|unexpected keyword"
    r"|\b[A-Z]\w+\((?:id|choices)="
)
"""Texts in the message of an exception that a program raised about itself, not a service."""

_WITHOUT_WORDS = re.compile(r"^(?:Error code: \d+(?: - None)?|.*\b\d+ None\. (?:None|\{\}))$")
"""What the clients say themselves where a service gave a status only."""

_BROKEN_OFF = re.compile(
    r"payload is not completed|without sending complete|incomplete (?:chunk|mes)"
)
"""What they say of an answer whose connection ended before it was complete."""

_RAW_ANSWER = re.compile(r"Failed to parse response as JSON\. Raw response: ")
"""What Google's client says before an answer that is no JSON."""

_KEY_VARIABLES = ("_API_KEY", "_AUTH_TOKEN", "_ACCESS_TOKEN", "_SECRET_ACCESS_KEY")
"""Endings of the names of variables that contain a provider's secret."""

_MIN_SECRET_CHARACTERS = 8
"""A shorter value is a placeholder for a key, and may be part of any word."""

_LITELLM_HEAD = re.compile(r"^(?:litellm\.(?:\w+: )+(?:\w+Exception - )?)+")
"""The class names before the service's own message."""

_LITELLM_UNREADABLE = re.compile(
    r"^(?:Error in|Invalid) response object|^Empty or invalid response"
)
"""What LiteLLM says of an answer that is no reply, with a status of its own."""

_AUTHORIZATION = re.compile(r"(?i)(bearer |x-api-key\W+|x-goog-api-key\W+)[^\s'\",}]+")

MAX_READ_CHARACTERS = 20_000
"""How much of a message is looked at: some quote the whole request, and it is read on the event
loop."""

MAX_MESSAGE_CHARACTERS = 300
"""The length of a provider's message in our failure."""

_UNVERSIONED = frozenset({"/chat/completions", "/responses"})
_LACKS_VERSION = ", which usually ends in /v1"

_UNREADABLE = "its answer could not be read"
_EMPTY = "its answer was empty"
_BROKE_OFF = "its answer broke off"

_OF_PROGRAMS = (AttributeError, LookupError, TypeError, AssertionError)
"""What a client raises that takes a reply for what it is not: its text says nothing of it."""

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


class ReplyFailed(Exception):
    """A service ended its own reply with an error, although its status was good.

    Args:
        message: The service's message.
        code: The service's code for the reason.
        status: The HTTP status that the error would have; None if it is not known.
        details: The error as the service gave it.
    """

    def __init__(
        self, message: str, *, code: str = "", status: int | None = None, details: Any = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status_code = status
        self.details = details


class NotAReply(Exception):
    """What answered is no model's service; the message begins as its answer does."""


class UnusableReply(Exception):
    """A reply that has no content which may be used.

    Args:
        reason: What is wrong with it, with the service's own words.
        usage: What the service says that it used.
    """

    def __init__(
        self, reason: str, usage: types.GenerateContentResponseUsageMetadata | None = None
    ) -> None:
        super().__init__(reason)
        self.usage = usage


def find_error(body: Any, *, lacks_reply: bool = False) -> ReplyFailed | None:
    """Return the error that a decoded answer with a good status reports; None if it has none.

    Args:
        body: The answer.
        lacks_reply: Whether nothing else is in it: then any message is an error.
    """
    held = (
        next((each for each in body if isinstance(each, Mapping)), {})
        if isinstance(body, list)
        else body
    )
    if not isinstance(held, Mapping) or not (held.get("error") or lacks_reply):
        return None
    found = _find_error(held)
    if not held.get("error") and not found.get("message"):
        return None
    names = [found.get(name) for name in ("code", "type", "status")]
    numbers = (int(str(name)) for name in names if str(name).isdecimal())
    status = next((number for number in numbers if 400 <= number < 600), None)  # noqa: PLR2004
    codes = (name for name in names if isinstance(name, str) and not name.isdecimal())
    message = found.get("message") or _as_text(found)
    return ReplyFailed(str(message), code=next(codes, ""), status=status, details=body)


def translated(error: Exception, model: str) -> ModelFailed:
    """Return a provider's exception as one of our failures, without the keys that it may quote.

    Args:
        error: The exception of a provider's client.
        model: The model's name, for the message.
    """
    if isinstance(error, ModelFailed):
        return error
    failure = _make_failure(error, model)
    failure.status = _status(error)
    failure.wait_seconds = asked_for_seconds(error)
    if failure.wait_seconds is None and isinstance(failure, ModelQuotaUsedUp | ModelUnresponsive):
        failure.wait_seconds = seconds_to_reset(error)
    return failure


def _make_failure(error: Exception, model: str) -> ModelFailed:
    status, words = _status(error), _words(error)
    described = _described(status, words)
    if status in REDIRECT_STATUS:
        return ModelDenied(
            f"The server of {model} answered with a redirect ({status}), which is not followed. "
            "Check its address, and set the one that the redirect leads to."
        )
    if is_quota_used_up(error):
        return ModelQuotaUsedUp(f"The quota for {model} is used up ({described}).")
    if _is_too_long(error, status):
        return ModelContextExceeded(f"The request is too long for {model} ({described}).")
    if _is_broken_off(error):
        return ModelUnresponsive(f"{model} does not answer, after all retries ({words}).")
    if isinstance(error, NotAReply) or (status in {None, 200} and _is_a(error, _NO_JSON)):
        return ModelUnresponsive(
            f"{model} is not what answers at its address, after all retries ({words}). Check the "
            "address."
        )
    if _LITELLM_UNREADABLE.match(_message(error)):
        return ModelUnresponsive(f"{model} does not answer, after all retries ({words}).")
    if _is_denied(error, status, words):
        is_about_model = "model" in words.lower() and not words.startswith("<")
        is_from_elsewhere = status in _OF_PATH and not is_about_model
        what = "name, its key and its address" if is_from_elsewhere else "name and its key"
        what += _LACKS_VERSION if is_from_elsewhere and _path(error) in _UNVERSIONED else ""
        return ModelDenied(f"{model} refused the request ({described}). Check the model's {what}.")
    if _is_unusable(error, status):
        return ModelReplyUnusable(f"{model} gave no usable reply, after all retries ({words}).")
    is_retryable = is_retryable_status(status) or (
        status in {None, 200}
        and (_codes(error) & _RETRYABLE_CODES or _is_unreached(error) or _is_in_reply(error))
    )
    if is_retryable:
        return ModelUnresponsive(f"{model} does not answer, after all retries ({described}).")
    return ModelRefused(f"{model} refused the request ({described}).")


def is_retryable_status(status: int | None) -> bool:
    """Return whether the same request may be answered later, by the status of its answer."""
    return status is not None and (
        status in RETRYABLE_STATUS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )


def _described(status: int | None, words: str) -> str:
    """Return a status that says something with the service's words, as far as there are any."""
    said = str(status) if status and status >= HTTPStatus.MULTIPLE_CHOICES else ""
    return ": ".join(part for part in (said, words) if part) or _EMPTY


def http_status(error: Exception) -> int | None:
    """Return the HTTP status of a client's exception; None if it has none."""
    return _status(error)


def provider_words(error: Exception) -> str:
    """Return the service's own words in an exception, on one line, without keys."""
    return _words(error)


def is_rate_limited(error: Exception) -> bool:
    """Return whether the service rejected the request for its rate limit."""
    status = _status(error)
    is_limited = status == RATE_LIMITED_STATUS or (
        status in {None, 200} and bool(_codes(error) & _RATE_LIMITED_CODES)
    )
    return is_limited and not is_quota_used_up(error)


def is_quota_used_up(error: Exception) -> bool:
    """Return whether the account has no quota or credit left, so that no wait of minutes helps."""
    status = _status(error)
    if status == UNPAID_STATUS or any(
        _QUOTA_CODE.search(code) and not _RATE_CODE.search(code) for code in _codes(error)
    ):
        return True
    wait = asked_for_seconds(error)
    known = seconds_to_reset(error) if wait is None else wait
    if status == RATE_LIMITED_STATUS and known is not None and known > QUOTA_WAIT_SECONDS:
        return True
    if any(_LONG_QUOTA.search(quota) for quota in _violated_quotas(error)):
        return True
    # Gemini says of each rate that it is a quota, with the seconds to wait.
    is_vague = status in {400, 403, RATE_LIMITED_STATUS} or isinstance(error, ReplyFailed)
    is_vague = is_vague and wait is None
    return is_vague and _QUOTA_MESSAGE.search(_message(error)) is not None


def asked_for_seconds(error: Exception) -> float | None:
    """Return the number of seconds that the service asks to wait, or None."""
    response = getattr(error, "response", None)
    headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
    value = headers.get("retry-after") or headers.get("Retry-After")
    if value:
        with contextlib.suppress(ValueError):
            seconds = float(value)
            return seconds if math.isfinite(seconds) else None
        with contextlib.suppress(ValueError):
            return _seconds_to(parsedate_to_datetime(value))
    found = re.search(
        r"retryDelay['\"]?:\s*['\"](\d+(?:\.\d+)?)s", str(getattr(error, "details", ""))
    )
    return float(found[1]) if found else None


def seconds_to_reset(error: Exception) -> float | None:
    """Return when a limit or quota is filled up again, as headers or the message say; else None."""
    response = getattr(error, "response", None)
    headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
    lower = {str(name).lower(): str(value) for name, value in dict(headers).items()}
    waits = [
        _seconds_until(value)
        for name, value in lower.items()
        if "ratelimit" in name and "reset" in name and _is_spent(lower, name)
    ]
    if known := [wait for wait in waits if wait is not None]:
        return max(known)
    found = _RESETS_IN.search(_message(error))
    return _duration(found["in"]) if found else None


def _is_spent(headers: Mapping[str, str], reset: str) -> bool:
    """Return whether nothing remains of the limit of which a header says when it is filled up."""
    remaining = headers.get(reset.replace("reset", "remaining"))
    return remaining is None or remaining.strip() in {"0", "0.0"}


def _seconds_until(value: str) -> float | None:
    """Return the seconds until a time: as a duration, a time since the epoch or a date."""
    with contextlib.suppress(ValueError):
        seconds = float(value)
        if not math.isfinite(seconds):
            return None
        if seconds > _EPOCH_MILLISECONDS:
            seconds /= 1000
        return seconds - time.time() if seconds > _EPOCH_SECONDS else seconds
    with contextlib.suppress(ValueError):
        return _seconds_to(datetime.fromisoformat(value))
    return _duration(value)


def _seconds_to(at: datetime) -> float:
    """Return the seconds until a time, which is UTC if it has no time zone."""
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()


def _duration(text: str) -> float | None:
    """Return the seconds of a duration such as `5 h`, `6m0s` or `20ms`; None for another text."""
    parts = _DURATION_PART.findall(text.lower())
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else None


def _violated_quotas(error: Exception) -> Iterator[str]:
    """Yield the names of the quotas that Gemini says were violated."""
    details = str(getattr(error, "details", None) or getattr(error, "body", None))
    for found in re.finditer(r"quota(?:Id|Metric)['\"]?:\s*['\"]([^'\"]+)", details):
        yield found[1]


def _is_too_long(error: Exception, status: int | None) -> bool:
    codes, found = _codes(error), _error_object(error)
    is_named_so = codes & _TOO_LONG_CODES or _is_a(error, {"ContextWindowExceededError"})
    is_said_so = status == RATE_LIMITED_STATUS and _TOO_LARGE_MESSAGE.search(_message(error))
    return status == TOO_LARGE_STATUS or bool(is_named_so or is_said_so) or "n_ctx" in found


def _is_denied(error: Exception, status: int | None, message: str) -> bool:
    if status in DENIED_STATUS or _is_a(error, _NO_CREDENTIALS):
        return True
    if status in REJECTED_STATUS and _UNKNOWN_MODEL.search(message):
        return True
    said = f"{message} {_body(error)}"  # Gemini says it in details
    return status in {None, 400} and _INVALID_KEY_MESSAGE.search(said) is not None


def _is_unusable(error: Exception, status: int | None) -> bool:
    """Return whether the client failed at a reply of a form that it does not know."""
    if status is not None or _codes(error) or _is_unreached(error):
        return False
    if isinstance(error, ValueError):  # else it is about an argument: the request cannot be made
        return _PYTHON_TEXT.search(error_text(error, MAX_READ_CHARACTERS)) is not None
    return isinstance(error, (UnusableReply, *_OF_PROGRAMS, NotImplementedError))


def _words(error: Exception) -> str:
    """Return what an exception says, without keys, and nothing of what Python says of itself.

    It is empty if the service gave no words, only a status.
    """
    message = _message(error)
    if _is_unreached(error) and _is_broken_off(error):
        return _BROKE_OFF
    if (document := _unread(error)) is not None:
        return without_keys(one_line(document)) or _EMPTY
    is_programs = _PYTHON_TEXT.search(message) and not _error_object(error).get("message")
    if isinstance(error, _OF_PROGRAMS) or is_programs:
        return "it was not reached" if _is_unreached(error) else _UNREADABLE
    if not message and _status(error) is None:
        return "it was not reached" if _is_unreached(error) else _UNREADABLE
    return without_keys(message)[:MAX_MESSAGE_CHARACTERS]


def _unread(error: Exception) -> str | None:
    """Return the text that a client could not read as JSON; None if the error is another one."""
    if (document := getattr(error, "doc", None)) is not None:
        return error_text(document, MAX_READ_CHARACTERS)
    said = error_text(error, MAX_READ_CHARACTERS)
    found = _RAW_ANSWER.match(said)
    return said[found.end() :] if found else None


def _is_broken_off(error: Exception) -> bool:
    """Return whether an answer, or the JSON of one, ends before it is complete."""
    said = error_text(error, MAX_READ_CHARACTERS)
    document = said if isinstance(error, NotAReply) else _unread(error)
    if document is not None:
        return document.lstrip().startswith(("{", "["))
    return _is_unreached(error) and _BROKEN_OFF.search(said) is not None


def _message(error: Exception) -> str:
    """Return the service's own message, if it can be found, on one line; empty if it gave none."""
    found, body = _error_object(error), _body(error)
    # The clients put no words, or the whole body, into the message of an error that has no object.
    message = found.get("message")
    if not message and body is not None:
        message = _as_text(body)
    if not message:
        said = error_text(getattr(error, "message", None) or error, MAX_READ_CHARACTERS)
        message = "" if _WITHOUT_WORDS.match(one_line(said)) else said
    return _LITELLM_HEAD.sub("", one_line(_as_text(message)[:MAX_READ_CHARACTERS]))


def _body(error: Exception) -> Any:
    """Return what a service sent with an error, decoded if it was JSON; None if nothing."""
    return getattr(error, "body", None) or getattr(error, "details", None) or None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def _error_object(error: Exception) -> Mapping[str, Any]:
    """Return what the body of a response, as its client keeps it, says of the error."""
    return _find_error(_body(error))


def _find_error(body: Any) -> Mapping[str, Any]:
    """Return the error in a decoded body as one object with a `message`; empty if there is none.

    Services put an object, a text or a list under `error`, `errors` or `detail`, and Gemini may put
    all of it into a list. A service that passes requests on has the words of the one behind it
    under `metadata`.
    """
    while True:
        if isinstance(body, list):
            body = next((each for each in body if isinstance(each, Mapping)), None)
        if not isinstance(body, Mapping):
            return {}
        names = ("error",) if body.get("message") else ("error", "errors", "detail", "base_resp")
        inner = next((body[name] for name in names if body.get(name)), None)
        if isinstance(inner, list):
            inner = next((each for each in inner if isinstance(each, Mapping)), _as_text(inner))
        if not isinstance(inner, Mapping):
            break
        body = inner
    if inner is not None:
        return {**body, "message": _as_text(inner)}
    said = next((body[name] for name in ("message", "msg", "status_msg") if body.get(name)), None)
    if said is None:
        return body
    behind = body["metadata"].get("raw") if isinstance(body.get("metadata"), Mapping) else None
    return {**body, "message": ": ".join(_as_text(each) for each in (said, behind) if each)}


def _codes(error: Exception) -> frozenset[str]:
    """Return the service's codes for the error."""
    found = _error_object(error)
    named = (found.get("code"), found.get("type"), getattr(error, "code", None))
    return frozenset(code for code in named if isinstance(code, str) and code)


def without_keys(message: str) -> str:
    """Hide keys in a message, which some services quote, because it goes into logs and results."""
    for name, value in os.environ.items():
        if name.endswith(_KEY_VARIABLES) and len(value) >= _MIN_SECRET_CHARACTERS:
            message = message.replace(value, "(hidden)")
    return _AUTHORIZATION.sub(r"\1(hidden)", message)


def _is_unreached(error: Exception) -> bool:
    return isinstance(error, (ConnectionError, TimeoutError)) or _is_a(error, _UNREACHED)


def _is_in_reply(error: Exception) -> bool:
    """Return whether a service that had begun to reply reports the error itself."""
    return isinstance(error, ReplyFailed) or _is_a(error, {"APIError"})


def _is_a(error: Exception, names: frozenset[str] | set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _path(error: Exception) -> str:
    """Return the path that was asked; empty if it is not known."""
    url = getattr(getattr(error, "request", None), "url", None)
    return str(getattr(url, "path", ""))


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
        status, words = http_status(error), provider_words(error)
        is_rejected = status in REJECTED_STATUS and type(failure) is ModelRefused
        is_failed = status in FAILED_STATUS and type(failure) in {ModelUnresponsive, ModelRefused}
        is_suspect = (is_rejected or is_failed) and not _is_unreached(error)
        is_suspect = is_suspect and _ABOUT_LENGTH.search(words) is not None
        is_long = is_rejected and (_is_near_window(request) or self._grew(name, request))
        is_unclear = status is not None and status not in OTHER_REASONS
        is_unclear = is_unclear and type(failure) in {ModelUnresponsive, ModelRefused}
        if is_suspect or is_long or (is_unclear and _is_above_window(request)):
            return ModelContextSuspected(
                f"{request.model} refused the request ({_described(status, words)}), perhaps "
                "because it is too "
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
