"""A model that asks again when its service is overloaded, and asks another when that does not help.

One implementation for all providers: the waits that a service asks for (`Retry-After`, Gemini's `retryDelay`)
are kept, which the providers' own clients do each in its own way or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from google.adk.models._capabilities import LlmCapabilities
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from orchestrator.deep_agent.failures import ModelFailed, ModelRefused, ModelUnavailable

RETRYABLE_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Time-outs, conflicts, rate limits, server errors; 529 is Anthropic's `overloaded`."""

_UNREACHED = frozenset(
    {
        "APIConnectionError",  # openai, anthropic, litellm
        "APITimeoutError",
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "TransportError",  # httpx, google.auth
        "JSONDecodeError",  # an answer that is no JSON comes from a proxy in between
        "UnknownApiResponseError",  # the same, from google-genai
    }
)
"""By name, in the error's ancestry: most of the libraries that raise them are optional."""

_KEY_VARIABLES = ("_API_KEY", "_AUTH_TOKEN", "_ACCESS_TOKEN", "_SECRET_ACCESS_KEY")
"""How the names of variables that hold a provider's secret end."""

MAX_MESSAGE_CHARACTERS = 300
"""How much of a provider's own words goes into our error."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently to ask again."""

    attempts: int = 5
    """Of one model, the first included."""
    first_delay_seconds: float = 1.0
    """Doubles with each attempt; half of it is chance, so that many agents do not come back at once."""
    max_delay_seconds: float = 60.0
    """Also the longest wait that a service may ask for."""

    def delay(self, attempt: int, asked_for: float | None) -> float:
        """How long to wait after the failed attempt of that number, from 0."""
        backoff = min(self.first_delay_seconds * 2**attempt, self.max_delay_seconds)
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, protects nothing
        return jittered if asked_for is None else min(max(asked_for, 0.0), self.max_delay_seconds)


DEFAULT_RETRIES = RetryPolicy()


class ResilientModel(BaseLlm):
    """The first of several models that answers."""

    candidates: list[BaseLlm]
    retries: RetryPolicy = DEFAULT_RETRIES

    @property
    def capabilities(self) -> LlmCapabilities:
        """Those of the first candidate."""
        return self.candidates[0].capabilities

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The reply of the first model that gives one; ModelFailed when none does.

        Partial pieces may come again after a retry: ADK takes them as a display hint only.
        """
        failure: ModelFailed = ModelUnavailable("No model was asked.")
        for candidate in self.candidates:
            for attempt in range(self.retries.attempts):
                replied = False
                try:
                    request = _copy(llm_request, candidate.model)
                    async with contextlib.aclosing(
                        candidate.generate_content_async(request, stream=stream)
                    ) as responses:
                        async for response in responses:
                            replied = replied or not response.partial
                            yield response
                except Exception as error:  # noqa: BLE001 - whatever it is, it leaves as ours
                    failure = translated(error, candidate.model)
                    if replied or not failure.retryable:
                        raise failure from None  # the original's text may quote the key
                    if attempt + 1 < self.retries.attempts:
                        await asyncio.sleep(self.retries.delay(attempt, _asked_for(error)))
                else:
                    return
        raise failure


def translated(error: Exception, model: str) -> ModelFailed:
    """A provider's error as ours, told by its status or, when there is none, by its class."""
    if isinstance(error, ModelFailed):
        return error
    status = _status(error)
    words = _without_keys(str(getattr(error, "message", None) or error).strip())[:MAX_MESSAGE_CHARACTERS]
    said = f"{status}: {words}" if status else f"{type(error).__name__}: {words}"
    if status in RETRYABLE_STATUS or (status is None and _is_unreached(error)):
        return ModelUnavailable(f"{model} does not answer, after all retries ({said}).")
    return ModelRefused(f"{model} refused the request ({said}).")


def _without_keys(words: str) -> str:
    """Some services quote the key that they refuse, and an error's text goes into logs and results."""
    for name, value in os.environ.items():
        if name.endswith(_KEY_VARIABLES) and value:
            words = words.replace(value, "(hidden)")
    return words


def _is_unreached(error: Exception) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    return any(kind.__name__ in _UNREACHED for kind in type(error).__mro__)


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


def _asked_for(error: Exception) -> float | None:
    """The wait that the service asks for, in seconds."""
    headers = (
        getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    )
    value = headers.get("retry-after") or headers.get("Retry-After")
    if value:
        with contextlib.suppress(ValueError):
            return float(value)
        with contextlib.suppress(ValueError):
            return (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    found = re.search(r"retryDelay['\"]?:\s*['\"](\d+(?:\.\d+)?)s", str(getattr(error, "details", "")))
    return float(found[1]) if found else None


def _copy(request: LlmRequest, model: str) -> LlmRequest:
    """A request that a client may edit: some add contents and change the configuration in place."""
    update: dict[str, Any] = {
        "model": model,
        "contents": list(request.contents),
        "config": request.config.model_copy(),
    }
    return request.model_copy(update=update)
