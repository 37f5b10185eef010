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
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

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
from .errors import (
    PassedRequests,
    UnusableReply,
    asked_for_seconds,
    provider_words,
    translated,
)
from .facts import context_window
from .rate_limiter import LimitedRequest, RateLimiter
from .replies import clean_reply, settle_ending, unusable
from .reservations import ReservedRequests
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

WAITED_SECONDS = 0.05
"""After a longer wait for the rate limit, whether the model is open is asked again."""

UNUSABLE_ATTEMPTS = 2
"""Attempts with one model that give no usable reply: a repetition helps against a fault of the
moment, and an agent that tells the model what was wrong asks again anyway."""


class ModelProgress(Protocol):
    """Gets the progress of a run's requests. It must return at once, and gets no text of them."""

    def asked(self, model: str, attempt: int) -> None:
        """A request is sent.

        Args:
            model: The model's name as requested.
            attempt: The number of the attempt with this model, from 1.
        """

    def received(self, characters: int) -> None:
        """A piece of the reply came, of so many characters."""

    def failed(self, why: str) -> None:
        """The attempt failed, and another one follows.

        Args:
            why: A status such as `503`, or a few words of ours.
        """

    def answered(self) -> None:
        """The request is over, with a reply or without one."""


_watching: ContextVar[ModelProgress | None] = ContextVar("model_progress", default=None)


@contextmanager
def watched_by(progress: ModelProgress | None) -> Iterator[None]:
    """Let requests to models that begin in this context be reported.

    Their replies are streamed from the services where these can, so that it is seen that they come.
    None: nobody watches them, and they are not streamed for it.
    """
    token = _watching.set(progress)
    try:
        yield
    finally:
        _watching.reset(token)


def watcher() -> ModelProgress | None:
    """Return who watches the requests of this context; None for nobody."""
    return _watching.get()


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


class _Nobody:
    """Watches nothing; see `ModelProgress`."""

    def asked(self, model: str, attempt: int) -> None:
        pass

    def received(self, characters: int) -> None:
        pass

    def failed(self, why: str) -> None:
        pass

    def answered(self) -> None:
        pass


_NOBODY: ModelProgress = _Nobody()


class _NoReply(Exception):
    """One model gave no reply, and another one may."""

    def __init__(self, failure: ModelFailed) -> None:
        super().__init__(failure)
        self.failure = failure


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
            (watcher() or _NOBODY).answered()

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
        progress = watcher() or _NOBODY
        watched = not stream and progress is not _NOBODY and self._streaming.get(name, True)
        held = HeldRequest(name)
        await _ask(held)
        attempts = self.retries.attempts
        if held.is_trial:
            attempts = min(TRIAL_ATTEMPTS, attempts)
        for attempt in range(attempts):
            replied = False
            streams = stream or watched
            # An attempt may create a cache, or fail because of one: later attempts use none.
            request = _copy(llm_request, candidate.model, may_cache=attempt == 0)
            if request.config.max_output_tokens is None:
                request.config.max_output_tokens = self.max_output_tokens
            try:
                await reserved.reserve(request)
            except ModelDenied as unpriced:
                raise _NoReply(unpriced) from None
            limited = LimitedRequest(self.rate_limiter, name, request)
            asked_at = time.monotonic()
            if not await self._may_send(limited, is_last=is_last):
                raise _NoReply(ModelUnresponsive(f"The rate limit of {name} delays the request."))
            if attempt or time.monotonic() - asked_at > WAITED_SECONDS:
                await _ask(held)
            progress.asked(name, attempt + 1)
            reserved.sent()
            try:
                responses = self._responses(candidate, request, streams)
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        await reserved.note(response)
                        await held.answered()
                        if response.partial:
                            progress.received(_characters(response))
                            if not stream:  # streamed for who watches only
                                continue
                        replied = replied or not response.partial
                        limited.note(response)
                        yield response
            except Exception as error:
                if error is reserved.fault:
                    raise
                await reserved.failed(error)
                failure = translated(error, candidate.model)
                progress.failed(str(failure.status or "no usable reply"))
                if watched and not replied and self._may_not_stream(name, failure):
                    watched = False  # perhaps it answers if it need not stream
                    await limited.failed(error)
                    continue
                failure = self._passed.suspected(failure, error, name, request)
                await limited.failed(error)
                is_cached = request.config.cached_content is not None
                is_denied = isinstance(failure, ModelDenied) and not is_cached
                if is_denied:
                    self._denied_until[name] = time.monotonic() + DENIED_SECONDS
                is_too_long = isinstance(failure, ModelContextExceeded)
                if isinstance(failure, ModelContextSuspected):
                    is_too_long = not is_cached  # the cache is suspected first
                # From None: the original's text may quote the key.
                if not replied and (is_denied or is_too_long):
                    raise _NoReply(await held.failed(failure)) from None
                if held.is_held and not replied and self._is_long(failure):
                    raise _NoReply(await held.failed(failure)) from None
                if replied or not (failure.retryable or is_cached):
                    raise failure from None
                if isinstance(failure, ModelReplyUnusable) and attempt + 1 >= UNUSABLE_ATTEMPTS:
                    _log_unusable(candidate.model, error)
                    if not is_last:
                        raise _NoReply(failure) from None
                    reply = error if isinstance(error, UnusableReply) else None
                    yield unusable(candidate.model, provider_words(error), reply)
                    return
                if attempt + 1 < attempts:
                    held.is_repeated()
                    await self._pause(failure, attempt, asked_for_seconds(error))
            else:
                if not stream and progress is not _NOBODY:
                    self._streaming[name] = streams
                self._passed.add(name, request)
                await limited.answered()
                return
        raise _NoReply(await held.failed(failure))

    def _is_long(self, failure: ModelFailed) -> bool:
        """Return whether a service asks to wait for longer than a request does in its place."""
        wait = failure.wait_seconds
        return failure.retryable and wait is not None and wait > self.retries.max_delay_seconds

    def _may_not_stream(self, name: str, failure: ModelFailed) -> bool:
        """Return whether a request may have failed because a streamed reply was asked for.

        Servers say that in any words, and with any status. A model that has streamed before does.
        """
        if name in self._streaming or isinstance(failure, ModelDenied | ModelContextExceeded):
            return False
        is_about_request = isinstance(failure, ModelRefused | ModelReplyUnusable)
        return is_about_request or failure.status in _STATUSES_WITHOUT_STREAMS

    async def _pause(self, failure: ModelFailed, attempt: int, asked_for: float | None) -> None:
        """Wait before the next attempt."""
        if failure.retryable:
            await asyncio.sleep(self.retries.delay(attempt, asked_for))

    async def _may_send(self, limited: LimitedRequest, *, is_last: bool) -> bool:
        """Wait for the rate limiter; return False after a while if another model can be asked."""
        patience = None if is_last else self.retries.max_delay_seconds
        try:
            async with asyncio.timeout(patience) as limit:
                await limited.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True

    async def _responses(
        self, candidate: BaseLlm, request: LlmRequest, stream: bool
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one attempt's responses; raise if the service is silent too long or sends none."""
        limit = self.retries.reply_seconds
        replied = False
        responses = candidate.generate_content_async(request, stream=stream)
        async with contextlib.aclosing(responses):
            while True:
                try:
                    async with asyncio.timeout(limit) as patience:
                        response = await anext(responses)
                except StopAsyncIteration:
                    if not replied:  # as clients do with a stream that they cannot read
                        raise ConnectionError("no reply came") from None
                    return
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
                limit = self.retries.stream_pause_seconds


async def _ask(held: HeldRequest) -> None:
    """Ask whether a request may be sent.

    Raises:
        _NoReply: It may not, and another model may be asked.
    """
    try:
        await held.ask()
    except ModelNotOpen as closed:
        raise _NoReply(closed) from None


def _characters(response: LlmResponse) -> int:
    """Return how much of a reply a piece of it is."""
    parts = (response.content.parts if response.content else None) or []
    return sum(len(part.text or "") for part in parts)


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
