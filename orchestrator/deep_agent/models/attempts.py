"""One attempt of a request with one model, with all that have a part in it.

Budgets reserve what it may use, the model's state says whether it may be sent, the rate limiter
when, and who watches the run sees how it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from ...cancellation import is_cancelled
from ..failures import ModelFailed, ModelUnresponsive
from .errors import translated
from .progress import NOBODY, ModelProgress, watcher
from .rate_limiter import LimitedRequest, RateLimiter
from .replies import clean_reply, settle_ending
from .reserved_requests import ReservedRequests
from .states import HeldRequest

WAITED_SECONDS = 0.05
"""After a longer wait for the rate limit, whether the model is open is asked again."""


@dataclass(kw_only=True)
class ModelAttempt:
    """One attempt. It is begun once, then its responses are read, then it has failed or not."""

    candidate: BaseLlm
    name: str
    """The model's name as requested."""
    number: int
    """From 0."""
    request: LlmRequest
    streams: bool
    """Whether the service is asked to send its reply in pieces."""
    passes_pieces: bool
    """Whether the caller gets them; else they only show that a reply comes."""
    held: HeldRequest
    """The request and its repetitions, as far as the model's state holds them back."""
    reserved: ReservedRequests
    """What the requests of this reply reserve of budgets."""
    rate_limiter: RateLimiter | None
    reply_seconds: float
    """How long the service may take until its first response."""
    stream_pause_seconds: float
    """How long a streamed reply may pause."""
    has_replied: bool = field(default=False, init=False)
    """Whether a complete response was passed on: then nothing is repeated."""
    _progress: ModelProgress = field(default_factory=lambda: watcher() or NOBODY, init=False)
    _limited: LimitedRequest = field(init=False)

    async def begin(self, patience_seconds: float | None) -> None:
        """Wait until the request may be sent; the caller sends it at once.

        Args:
            patience_seconds: How long it may wait for the rate limiter; None: for any time.

        Raises:
            ModelDenied, ModelNotOpen, ModelUnresponsive: It may not be sent to this model, or not
                soon.
            BudgetUsedUp: A shared budget has no room for it.
        """
        await self.reserved.reserve(self.request)
        self._limited = LimitedRequest(self.rate_limiter, self.name, self.request)
        asked_at = time.monotonic()
        await self._turn(patience_seconds)
        if self.number or time.monotonic() - asked_at > WAITED_SECONDS:
            await self.held.ask()
        self._progress.asked(self.name, self.number + 1)
        self.reserved.sent()

    async def responses(self) -> AsyncGenerator[LlmResponse, None]:
        """Yield the responses for the caller."""
        received = self._received()
        async with contextlib.aclosing(received):
            async for response in received:
                await self.reserved.note(response)
                await self.held.answered()
                if response.partial:
                    self._progress.received(_characters(response))
                    if not self.passes_pieces:
                        continue
                self.has_replied = self.has_replied or not response.partial
                self._limited.note(response)
                yield response

    async def succeeded(self) -> None:
        """Record that the reply is complete."""
        await self._limited.answered()

    async def failed(self, error: Exception) -> ModelFailed:
        """Record that there was no complete reply, and return why.

        Raises:
            Exception: The error itself, if it is none of the model: what the request has used could
                not be recorded.
        """
        if error is self.reserved.fault:
            raise error
        await self.reserved.failed(error)
        failure = translated(error, self.candidate.model)
        self._progress.failed(str(failure.status or "no usable reply"))
        await self._limited.failed(error)
        return failure

    async def _turn(self, patience_seconds: float | None) -> None:
        try:
            async with asyncio.timeout(patience_seconds) as limit:
                await self._limited.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            why = f"The rate limit of {self.name} delays the request."
            raise ModelUnresponsive(why) from None

    async def _received(self) -> AsyncGenerator[LlmResponse, None]:
        """Yield the service's responses; raise if it is silent for too long or sends none."""
        limit, candidate = self.reply_seconds, self.candidate
        replied = False
        responses = candidate.generate_content_async(self.request, stream=self.streams)
        async with contextlib.aclosing(responses):
            while True:
                try:
                    async with asyncio.timeout(limit) as patience:
                        response = await anext(responses)
                except StopAsyncIteration:
                    if not replied:  # as clients do with a stream that they cannot read
                        raise ConnectionError("no reply came") from None
                    return
                except asyncio.CancelledError as error:
                    if is_cancelled():
                        raise
                    raise ConnectionError("its request was cancelled") from error
                except TimeoutError:
                    if not patience.expired():
                        raise
                    raise TimeoutError(f"nothing came for {limit:g} s") from None
                response.model_version = candidate.model
                clean_reply(response)
                if not response.partial:
                    settle_ending(response)
                replied = replied or not response.partial
                yield response
                limit = self.stream_pause_seconds


def _characters(response: LlmResponse) -> int:
    """Return how much of a reply a piece of it is."""
    parts = (response.content.parts if response.content else None) or []
    return sum(len(part.text or "") for part in parts)
