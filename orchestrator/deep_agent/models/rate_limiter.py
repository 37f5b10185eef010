"""The rate limiter of models: each request to a service waits until it may be sent."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable
from uuid import uuid4

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from .errors import asked_for_seconds, is_rate_limited
from .tokens import reply_usage, request_tokens


@runtime_checkable
class RateLimiter(Protocol):
    """Limits the rate of requests to models.

    `request` is the unique id of a request, `model` the model's name as in settings and agent
    definitions, `tokens` the estimated size of the request and its reply. What `enter` raises ends
    the run.
    """

    async def enter(self, request: str, model: str, tokens: int) -> None:
        """Wait until the request may be sent; the caller sends it at once."""

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """Record that the request was answered and used so many tokens."""

    async def cut(
        self, request: str, model: str, tokens: int, asked_seconds: float | None
    ) -> object:
        """Record that the service rejected the request for its rate limit.

        `asked_seconds` is how long the service asks to wait, if it says so.
        """


class LimitedRequest:
    """One request to a model under a rate limiter; without a limiter it is never delayed.

    Args:
        rate_limiter: None for no limits.
        model: The model's name as in settings and agent definitions.
        request: Its size is estimated once, here.
    """

    def __init__(self, rate_limiter: RateLimiter | None, model: str, request: LlmRequest) -> None:
        self._rate_limiter = rate_limiter
        self._model = model
        self._id = uuid4().hex
        self._tokens = request_tokens(request) if rate_limiter is not None else 0
        """What the request counts as: first the estimate, then what it used."""
        self._used = 0
        self._settling: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Wait until the request may be sent.

        Raises:
            Exception: Whatever the rate limiter's `enter` raises.
        """
        if self._rate_limiter is not None:
            await self._rate_limiter.enter(self._id, self._model, self._tokens)

    def note(self, response: LlmResponse) -> None:
        """Record the tokens that a response reports; the last report counts.

        A complete response is reported at once: ADK takes what follows it after the agent's tools,
        and others would wait for what the request does not use.
        """
        self._used = reply_usage(response).tokens or self._used
        if self._rate_limiter is not None and not response.partial and self._settling is None:
            self._settling = asyncio.create_task(self._settle(self._rate_limiter))

    async def answered(self) -> None:
        """Report that the reply is complete."""
        if self._settling is not None:
            await self._settling
        if self._rate_limiter is not None and self._used not in (0, self._tokens):
            await self._settle(self._rate_limiter)

    async def failed(self, error: Exception) -> None:
        """Report that there was no complete reply; only a rate-limit error is passed on."""
        if self._rate_limiter is not None and is_rate_limited(error):
            await self._rate_limiter.cut(
                self._id, self._model, self._tokens, asked_for_seconds(error)
            )

    async def _settle(self, rate_limiter: RateLimiter) -> None:
        before, self._tokens = self._tokens, self._used or self._tokens
        await rate_limiter.settle(self._id, self._model, before, self._tokens)
