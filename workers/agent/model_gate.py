"""A job's requests to models: each waits for its turn.

The journal tells what was sent, and why not yet.
"""

from __future__ import annotations

import contextlib

from pydantic import JsonValue

from orchestrator.jobs.failures import LedgerUnavailable
from orchestrator.jobs.store.journal import EventType
from orchestrator.jobs.store.rate_limiter import RateLimiter
from workers.agent.session_journal import LINE_CHARACTERS, AttemptJournal


class JournaledRequests:
    """The gate of one attempt.

    A `model.request` stands in the journal just before each request is sent.

    So do repeated requests and those for summaries; one that had to wait for another turn, because
    its process stood still, stands there again under the same id. The append is the fence as well.
    """

    def __init__(self, limits: RateLimiter, journal: AttemptJournal) -> None:
        self._limits = limits
        self._journal = journal

    async def enter(self, request: str, model: str, tokens: int) -> None:
        """Wait for the request's turn and write that it is sent.

        Raises:
            LeaseLost: the attempt may no longer act.
            LedgerUnavailable: Redis stays away.
        """

        async def note() -> None:
            data: dict[str, JsonValue] = {"id": request, "model": model, "tokens": tokens}
            await self._journal.note(EventType.MODEL_REQUEST, data)

        await self._limits.enter(request, model, tokens, on_wait=self._tell, on_turn=note)

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """The request was answered."""
        await self._limits.settle(request, model, tokens, used)

    async def cut(self, request: str, model: str, tokens: int, asked_seconds: float | None) -> None:
        """The service refused it because there are too many."""
        seconds = await self._limits.cut(request, model, tokens, asked_seconds)
        await self._tell(f"{model} has too many requests (429): nobody asks it for {seconds:.3g} s")

    async def _tell(self, why: str) -> None:
        with contextlib.suppress(LedgerUnavailable):  # nothing that counts is lost
            await self._journal.note(
                EventType.LOG, {"stream": "model", "text": why}, why[:LINE_CHARACTERS]
            )
