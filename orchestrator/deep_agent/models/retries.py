"""A model that asks again when its service is overloaded, and asks another when that does not help.

One implementation for all providers: the waits that a service asks for (`Retry-After`, Gemini's
`retryDelay`) are kept and silence is ended, which the providers' own clients do each in its own way
or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from google.adk.models._capabilities import LlmCapabilities
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from orchestrator.deep_agent.failures import ModelContextExceeded, ModelFailed, ModelUnavailable
from orchestrator.deep_agent.models.admission import ModelAdmission, Turn
from orchestrator.deep_agent.models.errors import asked_for_seconds, translated
from orchestrator.deep_agent.models.facts import context_window
from orchestrator.deep_agent.models.prompt_caching import caching_of

REPLY_SECONDS = 600.0
"""How long a model may think before it says anything; not streamed, that is its whole reply. The
default of OpenAI's and Anthropic's clients."""
STREAM_PAUSE_SECONDS = 300.0
"""How long a streamed reply may pause. Gemini sends a call in one piece, a file of 60 kB takes
minutes."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently to ask again."""

    attempts: int = 5
    """Of one model, the first included."""
    first_delay_seconds: float = 1.0
    """Doubles with each attempt; half of it is chance, so that many agents do not come back at
    once."""
    max_delay_seconds: float = 60.0
    """Also the longest wait that a service may ask for."""
    reply_seconds: float = REPLY_SECONDS
    stream_pause_seconds: float = STREAM_PAUSE_SECONDS

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
    names: tuple[str, ...] = ()
    """The candidates' as they were asked for; their own where it is empty."""
    admission: ModelAdmission | None = None
    """What every request passes before it is sent; None lets all go."""

    @property
    def capabilities(self) -> LlmCapabilities:
        """Those of the first candidate."""
        return self.candidates[0].capabilities

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The reply of the first model that gives one; ModelFailed when none does.

        Each response says in `model_version` which candidate it is from. Partial pieces may come
        again after a retry: ADK takes them as a display hint only.
        """
        failure: ModelFailed = ModelUnavailable("No model was asked.")
        too_small: str | None = None
        names = self.names or tuple(candidate.model for candidate in self.candidates)
        for candidate, name in zip(self.candidates, names, strict=True):
            if too_small is not None and not _is_larger(candidate.model, too_small):
                continue
            for attempt in range(self.retries.attempts):
                replied = False
                # An attempt may leave a cache behind and fail because of one: the next goes
                # without.
                request = _copy(llm_request, candidate.model, may_cache=attempt == 0)
                turn = Turn(self.admission, name, request)
                if not await self._has_turn(turn, is_last=candidate is self.candidates[-1]):
                    failure = ModelUnavailable(
                        f"{name} has no turn to give for now, by its limits."
                    )
                    break
                try:
                    async with contextlib.aclosing(
                        self._responses(candidate, request, stream)
                    ) as responses:
                        async for response in responses:
                            replied = replied or not response.partial
                            turn.note(response)
                            yield response
                except Exception as error:  # noqa: BLE001 - whatever it is, it leaves as ours
                    failure = translated(error, candidate.model)
                    await turn.failed(error)
                    if isinstance(failure, ModelContextExceeded) and not replied:
                        too_small = candidate.model
                        break
                    is_cached = request.config.cached_content is not None
                    if replied or not (failure.retryable or is_cached):
                        raise failure from None  # the original's text may quote the key
                    await self._pause(failure, attempt, asked_for_seconds(error))
                else:
                    await turn.answered()
                    return
        raise failure

    async def _pause(self, failure: ModelFailed, attempt: int, asked_for: float | None) -> None:
        """Wait before the model is asked again; the last attempt has nothing to wait for."""
        if failure.retryable and attempt + 1 < self.retries.attempts:
            await asyncio.sleep(self.retries.delay(attempt, asked_for))

    async def _has_turn(self, turn: Turn, *, is_last: bool) -> bool:
        """Wait for a request's turn; where another model can be asked, not for ever."""
        patience = None if is_last else self.retries.max_delay_seconds
        try:
            async with asyncio.timeout(patience) as limit:
                await turn.comes()
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True

    async def _responses(
        self, candidate: BaseLlm, request: LlmRequest, stream: bool
    ) -> AsyncGenerator[LlmResponse, None]:
        """One attempt's responses; an error when it falls silent or ends without any."""
        limit = self.retries.reply_seconds
        replied = False
        responses = candidate.generate_content_async(request, stream=stream)
        async with contextlib.aclosing(responses):
            while True:
                try:
                    async with asyncio.timeout(limit) as patience:
                        response = await anext(responses)
                except StopAsyncIteration:
                    if not replied:  # what a client makes of a stream that it cannot read
                        raise ConnectionError("no reply came") from None
                    return
                except TimeoutError:
                    if not patience.expired():
                        raise
                    raise TimeoutError(f"nothing came for {limit:g} s") from None
                response.model_version = candidate.model
                _mark_cut_calls(response)
                replied = replied or not response.partial
                yield response
                limit = self.retries.stream_pause_seconds


def _mark_cut_calls(response: LlmResponse) -> None:
    """A call at the end of a reply that was cut off has lost arguments: it must not be made."""
    is_cut = response.finish_reason == types.FinishReason.MAX_TOKENS and not response.partial
    if is_cut and response.get_function_calls():
        response.finish_reason = types.FinishReason.MALFORMED_FUNCTION_CALL
        response.error_code = response.error_message = (
            None  # it goes back to the model, the run goes on
        )


def _is_larger(model: str, other: str) -> bool:
    """Whether more fits into a model than into the other, as far as is known."""
    window, too_small = context_window(model), context_window(other)
    return window is not None and too_small is not None and window > too_small


def _copy(request: LlmRequest, model: str, *, may_cache: bool) -> LlmRequest:
    """A request that a client may edit: some add contents and change the configuration in place."""
    is_cached = may_cache and request.cache_config is not None
    update: dict[str, Any] = {
        "model": model,
        "contents": list(request.contents),
        "config": request.config.model_copy(),
        "cache_config": caching_of(model) if is_cached else None,
    }
    return request.model_copy(update=update)
