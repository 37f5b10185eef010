"""A model that retries when its service is overloaded, and then falls back to another model.

It falls back at once from a model that does not exist or that the key may not use.

One implementation for all providers: it waits as long as a service asks (`Retry-After`, Gemini's
`retryDelay`) and limits how long a service may be silent. The providers' own clients differ in
both, or do neither. Each attempt is reported to the `ModelProgress` of the run, and asks the
provider to cache the beginning of the conversation where that pays.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.base_llm_connection import BaseLlmConnection
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import PrivateAttr

from ...logs import Logger
from ..adk_internals import LlmCapabilities
from ..failures import (
    ModelContextExceeded,
    ModelContextSuspected,
    ModelDenied,
    ModelFailed,
    ModelNotOpen,
    ModelRefused,
    ModelReplyUnusable,
    ModelUnresponsive,
)
from .access import missing_key
from .attempts import ModelAttempt
from .errors import (
    PassedRequests,
    UnusableReply,
    asked_for_seconds,
    provider_words,
)
from .facts import context_window
from .progress import NOBODY, watcher
from .rate_limiter import RateLimiter
from .replies import unusable
from .reserved_requests import ReservedRequests
from .states import HeldRequest, earliest

GEMINI_MIN_TOKENS = 32_768
"""The size of the previous request from which a cache is created. Creating it is billed like one
more request, and Gemini discounts short repetitions automatically; an agent that has read this much
makes many more calls."""

GEMINI_TTL_SECONDS = 300
"""Storage is billed by time, and a cache does not grow with the conversation: the next one holds
more of it."""

GEMINI_USER_TURNS = 5
"""After how many messages of the user a new cache is created."""

GEMINI_CREATE_TIMEOUT_SECONDS = 20
"""A cache that takes longer to create costs more time than it saves; the request is sent without
it."""

CLAUDE_MIN_TOKENS = 2_048
"""Most Claude models cache nothing smaller. Writing costs a quarter more, reading nine tenths
less."""

CLAUDE_TTL_SECONDS = 300
"""The shorter and cheaper of Anthropic's two; each use renews it, and agents call more often."""

_GEMINI = ContextCacheConfig(
    min_tokens=GEMINI_MIN_TOKENS,
    ttl_seconds=GEMINI_TTL_SECONDS,
    cache_intervals=GEMINI_USER_TURNS,
    create_http_options=types.HttpOptions(timeout=GEMINI_CREATE_TIMEOUT_SECONDS * 1000),
)
_CLAUDE = ContextCacheConfig(min_tokens=CLAUDE_MIN_TOKENS, ttl_seconds=CLAUDE_TTL_SECONDS)

_BY_PREFIX = {"gemini-": _GEMINI, "claude-": _CLAUDE, "anthropic/": _CLAUDE}
log = Logger(__name__)

FALLBACK_FROM = "fallback_from"
"""Key of a reply's metadata: the models of the list that were asked first, with the failures."""

DENIED_SECONDS = 300.0
"""How long a model that the service denied is left out: an agent makes a request every few seconds,
and a key or a model's name is corrected by a person."""

REPLY_SECONDS = 600.0
"""How long a model may take until its first response, which is the whole reply if it is not
streamed. The default of OpenAI's and Anthropic's clients."""

STREAM_PAUSE_SECONDS = 300.0
"""How long a streamed reply may pause. Gemini sends a call in one piece, a file of 60 kB takes
minutes."""


TRIAL_ATTEMPTS = 2
"""Attempts of a request that tries a closed model; the second one need not stream."""

UNUSABLE_ATTEMPTS = 2
"""Attempts with one model that give no usable reply: a repetition helps against a fault of the
moment, and an agent that tells the model what was wrong asks again anyway."""


def cache_settings(model: str) -> ContextCacheConfig | None:
    """Return the cache settings for a model.

    None if its provider caches without being asked, or not at all.
    """
    return next((config for prefix, config in _BY_PREFIX.items() if model.startswith(prefix)), None)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a request is retried, and after which delays."""

    attempts: int = 5
    """Attempts with one model, the first included."""
    first_delay_seconds: float = 1.0
    """Doubles with each attempt; up to half of it is left out at random, so that many agents do not
    retry at the same moment."""
    max_delay_seconds: float = 60.0
    """Also the limit on the wait that a service asks for."""
    reply_seconds: float = REPLY_SECONDS
    stream_pause_seconds: float = STREAM_PAUSE_SECONDS

    def delay(self, attempt: int, asked_for: float | None) -> float:
        """Return how many seconds to wait after a failed attempt.

        Args:
            attempt: Its number, from 0.
            asked_for: The wait that the service asked for, in seconds; None if it did not.
        """
        backoff = min(self.first_delay_seconds * 2**attempt, self.max_delay_seconds)
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, protects nothing
        return jittered if asked_for is None else min(max(asked_for, 0.0), self.max_delay_seconds)


DEFAULT_RETRIES = RetryPolicy()


_STATUSES_WITHOUT_STREAMS = {500, 501, 505}
"""What servers also answer to a request that they do not know, besides the 4xx."""


class _NoReply(Exception):
    """One model gave no reply, and another one may."""

    def __init__(self, failure: ModelFailed) -> None:
        super().__init__(failure)
        self.failure = failure


@contextmanager
def _another_model_may_reply() -> Iterator[None]:
    """Let what keeps a request from being sent to a model be this model's failure only.

    Raises:
        _NoReply: The model may not be asked, or not soon.
    """
    try:
        yield
    except (ModelDenied, ModelNotOpen, ModelUnresponsive) as failure:
        raise _NoReply(failure) from None


class ResilientModel(BaseLlm):
    """Several models as one: the first that replies."""

    candidates: list[BaseLlm]
    retries: RetryPolicy = DEFAULT_RETRIES
    names: tuple[str, ...] = ()
    """The candidates' names as requested, for the rate limiter; their own names when empty."""
    rate_limiter: RateLimiter | None = None
    """Delays requests; None for no limits."""
    max_output_tokens: int | None = None
    """The most tokens of a reply, where a request sets no other limit; None: the client's own
    limit."""

    @property
    def capabilities(self) -> LlmCapabilities:
        """The capabilities of the first candidate."""
        return self.candidates[0].capabilities

    _denied_until: dict[str, float] = PrivateAttr(default_factory=dict)
    """Monotonic times, by name."""
    _streaming: dict[str, bool] = PrivateAttr(default_factory=dict)
    """Whether a model's service streams, by the model's name, as far as it is known."""
    _passed: PassedRequests = PrivateAttr(default_factory=PassedRequests)

    def connect(
        self, llm_request: LlmRequest
    ) -> contextlib.AbstractAsyncContextManager[BaseLlmConnection]:
        """Open a live connection to the first candidate, without retries."""
        return self.candidates[0].connect(llm_request)

    def only(self, is_wanted: Callable[[BaseLlm], bool]) -> ResilientModel | None:
        """Return the same with some of the candidates; None if none is wanted."""
        wanted = [each for each in self._named() if is_wanted(each[0])]
        if not wanted:
            return None
        return ResilientModel(
            model=wanted[0][0].model,
            candidates=[candidate for candidate, _ in wanted],
            retries=self.retries,
            names=tuple(name for _, name in wanted),
            rate_limiter=self.rate_limiter,
            max_output_tokens=self.max_output_tokens,
        )

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the reply of the first model that gives one.

        Each response names its candidate in `model_version`, and in its metadata the models that
        were asked before it. Partial responses may be repeated after a retry: ADK only displays
        them. If no reply of the last model can be used, the reply has the error code
        UNUSABLE_REPLY, so that an agent may tell the model.

        Raises:
            ModelFailed: No model replied; the last model's failure.
            BudgetUsedUp: A shared budget has no room for the request.
            Exception: Whatever the rate limiter or the reservations raise.
        """
        responses = self._first_reply(llm_request, stream=stream)
        try:
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
        finally:
            (watcher() or NOBODY).answered()

    async def _first_reply(
        self, llm_request: LlmRequest, *, stream: bool
    ) -> AsyncGenerator[LlmResponse, None]:
        failures: list[tuple[str, ModelFailed]] = []
        asked = self._asked()
        for candidate, name in asked:
            if not _may_help(candidate.model, failures):
                continue
            if failures:
                _log_fallback(*failures[-1], name)
            is_last = candidate is asked[-1][0]
            reserved = ReservedRequests(candidate.model)
            replies = self._replies(
                candidate, name, llm_request, reserved, stream=stream, is_last=is_last
            )
            try:
                async with contextlib.aclosing(replies):
                    async for response in replies:
                        yield _with_fallback(response, failures)
            except _NoReply as none:
                failures.append((name, none.failure))
            else:
                return
            finally:
                await reserved.close()
        raise earliest([failure for _, failure in failures])

    def _asked(self) -> list[tuple[BaseLlm, str]]:
        """Return the models to ask with their names, without those that were denied lately."""
        every = self._named()
        now = time.monotonic()
        return [each for each in every if self._denied_until.get(each[1], 0) <= now] or every

    def _named(self) -> list[tuple[BaseLlm, str]]:
        names = self.names or tuple(candidate.model for candidate in self.candidates)
        return list(zip(self.candidates, names, strict=True))

    async def _replies(
        self,
        candidate: BaseLlm,
        name: str,
        llm_request: LlmRequest,
        reserved: ReservedRequests,
        *,
        stream: bool,
        is_last: bool,
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one model's reply, after retries.

        Raises:
            _NoReply: It gave none, and another model may.
            ModelFailed: It gave none, and no other model would.
        """
        if lacking := missing_key(candidate, name):
            raise _NoReply(ModelDenied(lacking))
        held = HeldRequest(name)
        with _another_model_may_reply():
            await held.ask()
        attempts = self.retries.attempts
        if held.is_trial:
            attempts = min(TRIAL_ATTEMPTS, attempts)
        is_watched = watcher() is not None
        may_stream = is_watched and self._streaming.get(name, True)
        for number in range(attempts):
            attempt = ModelAttempt(
                candidate=candidate,
                name=name,
                number=number,
                request=self._request(llm_request, candidate.model, number),
                streams=stream or may_stream,
                passes_pieces=stream,
                held=held,
                reserved=reserved,
                rate_limiter=self.rate_limiter,
                reply_seconds=self.retries.reply_seconds,
                stream_pause_seconds=self.retries.stream_pause_seconds,
            )
            with _another_model_may_reply():
                await attempt.begin(None if is_last else self.retries.max_delay_seconds)
            try:
                responses = attempt.responses()
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        yield response
            except Exception as error:  # noqa: BLE001 - what it means is decided below
                failure = await attempt.failed(error)
                if self._may_not_stream(attempt, failure):
                    may_stream = False  # perhaps it answers if it need not stream
                    continue
                failure = self._passed.suspected(failure, error, name, attempt.request)
                reply = await self._without_repetition(attempt, failure, error, is_last=is_last)
                if reply is not None:
                    yield reply
                    return
                if number + 1 < attempts:
                    held.is_repeated()
                    await self._pause(failure, number, asked_for_seconds(error))
            else:
                if not stream and is_watched:
                    self._streaming[name] = attempt.streams
                self._passed.add(name, attempt.request)
                await attempt.succeeded()
                return
        raise _NoReply(await held.failed(failure))

    def _request(self, llm_request: LlmRequest, model: str, number: int) -> LlmRequest:
        """Return the request of an attempt."""
        # An attempt may create a cache, or fail because of one: later attempts use none.
        request = _copy(llm_request, model, may_cache=number == 0)
        if request.config.max_output_tokens is None:
            request.config.max_output_tokens = self.max_output_tokens
        return request

    async def _without_repetition(
        self, attempt: ModelAttempt, failure: ModelFailed, error: Exception, *, is_last: bool
    ) -> LlmResponse | None:
        """Return what a model replies that gives no usable reply; None if it is to be asked again.

        Raises:
            _NoReply: It is not asked again, and another model may reply.
            ModelFailed: No other model would.
        """
        is_cached = attempt.request.config.cached_content is not None
        is_denied = isinstance(failure, ModelDenied) and not is_cached
        if is_denied:
            self._denied_until[attempt.name] = time.monotonic() + DENIED_SECONDS
        is_too_long = isinstance(failure, ModelContextExceeded)
        if isinstance(failure, ModelContextSuspected):
            is_too_long = not is_cached  # the cache is suspected first
        is_held_long = attempt.held.is_held and self._is_long(failure)
        # From None: the original's text may quote the key.
        if not attempt.has_replied and (is_denied or is_too_long or is_held_long):
            raise _NoReply(await attempt.held.failed(failure)) from None
        if attempt.has_replied or not (failure.retryable or is_cached):
            raise failure from None
        if not isinstance(failure, ModelReplyUnusable) or attempt.number + 1 < UNUSABLE_ATTEMPTS:
            return None
        model = attempt.candidate.model
        _log_unusable(model, error)
        if not is_last:
            raise _NoReply(failure) from None
        reply = error if isinstance(error, UnusableReply) else None
        return unusable(model, provider_words(error), reply)

    def _is_long(self, failure: ModelFailed) -> bool:
        """Return whether a service asks to wait for longer than a request does in its place."""
        wait = failure.wait_seconds
        return failure.retryable and wait is not None and wait > self.retries.max_delay_seconds

    def _may_not_stream(self, attempt: ModelAttempt, failure: ModelFailed) -> bool:
        """Return whether a request may have failed because it was streamed for who watches only.

        Servers say that in any words, and with any status. A model that has streamed before does.
        """
        is_for_watcher = attempt.streams and not attempt.passes_pieces
        if not is_for_watcher or attempt.has_replied or attempt.name in self._streaming:
            return False
        if isinstance(failure, ModelDenied | ModelContextExceeded):
            return False
        is_about_request = isinstance(failure, ModelRefused | ModelReplyUnusable)
        return is_about_request or failure.status in _STATUSES_WITHOUT_STREAMS

    async def _pause(self, failure: ModelFailed, attempt: int, asked_for: float | None) -> None:
        """Wait before the next attempt."""
        if failure.retryable:
            await asyncio.sleep(self.retries.delay(attempt, asked_for))


def _may_help(model: str, failures: Sequence[tuple[str, ModelFailed]]) -> bool:
    """Return whether a model may reply where others failed: not if it is known to be too small."""
    return all(
        _is_larger(model, failed)
        for failed, failure in failures
        if isinstance(failure, ModelContextExceeded)
    )


def _log_unusable(model: str, error: Exception) -> None:
    """Log where a client failed at a reply; the texts may quote it."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    log.warning("no usable reply", model=model, error=type(error).__name__, at=place)


def _log_fallback(failed: str, failure: ModelFailed, name: str) -> None:
    # Not its message: a service may quote the request.
    log.warning(
        "another model is asked", model=name, instead_of=failed, reason=type(failure).__name__
    )


def _with_fallback(
    response: LlmResponse, failures: Sequence[tuple[str, ModelFailed]]
) -> LlmResponse:
    """Note in a response which models did not give it, and why."""
    if failures and not response.partial:
        failed = {name: type(failure).__name__ for name, failure in failures}
        response.custom_metadata = {**(response.custom_metadata or {}), FALLBACK_FROM: failed}
    return response


def _is_larger(model: str, other: str) -> bool:
    """Return whether a model is known to have a larger context window than the other."""
    window, too_small = context_window(model), context_window(other)
    return window is not None and too_small is not None and window > too_small


def _copy(request: LlmRequest, model: str, *, may_cache: bool) -> LlmRequest:
    """Copy a request, because some clients edit its contents and configuration in place."""
    is_cached = may_cache and request.cache_config is not None
    update: dict[str, Any] = {
        "model": model,
        "contents": list(request.contents),
        "config": request.config.model_copy(),
        "cache_config": cache_settings(model) if is_cached else None,
    }
    return request.model_copy(update=update)
