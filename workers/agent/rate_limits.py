"""The rate limits of a job's requests to models, with an entry in its journal for each request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pydantic import JsonValue

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.rate_limiter import RateLimiter
from fanout.workers.agent.session_journal import LINE_CHARACTERS, AttemptJournal


class JournaledRateLimiter:
    """The rate limiter of one attempt.

    It appends a `model.request` to the journal just before each request is sent, also for repeated
    requests and for those of summaries. A request that has to wait a second time, because the
    process was paused, is appended again with the same id. The append is a fence as well.

    Args:
        limiter: The rate limiter of the installation.
        journal: The attempt's journal.
        on_request: Is called when a request is about to wait for its rate limit.
    """

    def __init__(
        self, limiter: RateLimiter, journal: AttemptJournal, on_request: Callable[[], None]
    ) -> None:
        self._limiter = limiter
        self._journal = journal
        self._on_request = on_request

    async def enter(self, request: str, model: str, tokens: int) -> None:
        """Wait until the request may be sent, and append it to the journal.

        Args:
            request: The request's id.
            model: The model that is asked.
            tokens: The estimated size of the request.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
        """

        async def note() -> None:
            data: dict[str, JsonValue] = {"id": request, "model": model, "tokens": tokens}
            await self._journal.note(EventType.MODEL_REQUEST, data)

        async def waits(why: str) -> None:
            self._journal.activity.begin("queue", model=model)
            await self._log(why)

        self._on_request()
        await self._limiter.enter(request, model, tokens, on_wait=waits, on_turn=note)

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """Replace the estimate of an answered request by the tokens that it used."""
        await self._limiter.settle(request, model, tokens, used)

    async def cut(self, request: str, model: str, tokens: int, asked_seconds: float | None) -> None:
        """Lower the rate after the service rejected a request as one too many.

        Args:
            request: The request's id.
            model: The model that was asked.
            tokens: The estimated size of the request.
            asked_seconds: The pause that the service asked for; None if it named none.

        Raises:
            LeaseLost: The attempt's lease is lost.
        """
        seconds = await self._limiter.cut(request, model, tokens, asked_seconds)
        await self._log(f"{model} has too many requests (429): none is sent for {seconds:.3g} s")

    async def _log(self, why: str) -> None:
        with contextlib.suppress(LedgerUnavailable):  # a log line may be lost
            await self._journal.note(
                EventType.LOG, {"stream": "model", "text": why}, why[:LINE_CHARACTERS]
            )
