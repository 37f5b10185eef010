"""Reservations: what a request to a model may use is reserved of shared budgets before it is sent.

Who runs an agent sets them for a context with `reserving`. Each attempt of a request reserves anew,
and what it has used takes the place of that as soon as it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol
from uuid import uuid4

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from ...cancellation import uninterrupted
from ..failures import BudgetUsedUp, ModelDenied
from .tokens import (
    ANSWER_TOKENS,
    INPUT_MARGIN,
    ModelUsage,
    count_message_tokens,
    input_tokens,
    reply_usage,
)

LEAST_OUTPUT_TOKENS = 4_096
"""The least output for which a request is sent, unless it asks for less: a shorter reply is cut in
the middle of a file, and costs its input all the same."""


class Reservations(Protocol):
    """Reserves of the budgets that bind a run.

    `call` is the unique id of a request, `model` the model's own name.
    """

    async def reserve(
        self, call: str, model: str, input_tokens: int, most_output_tokens: int
    ) -> int | None:
        """Reserve what a request may use, and wait while only other requests are in the way.

        Args:
            call: The request's id.
            model: The model.
            input_tokens: The estimated size of the request.
            most_output_tokens: The most that the reply is to have.

        Returns:
            The output tokens that the request may have; None: no budget binds it.

        Raises:
            BudgetUsedUp: A budget has no room for it.
            ModelDenied: A budget of money binds it, and the model's price is not known.
        """

    async def settle(self, call: str, model: str, used: ModelUsage, *, is_reply: bool) -> None:
        """Replace what a request has reserved by what it has used.

        `is_reply` says whether there is a reply, which is charged by whoever receives it.
        """


_reserving: ContextVar[Reservations | None] = ContextVar("model_reservations", default=None)


@contextmanager
def reserving(reservations: Reservations) -> Iterator[None]:
    """Let requests to models that begin in this context reserve what they may use."""
    token = _reserving.set(reservations)
    try:
        yield
    finally:
        _reserving.reset(token)


class ReservedRequests:
    """The requests of one reply to one model, one after another, each with its reservation.

    Args:
        model: The model's own name, by which it has a price.
    """

    def __init__(self, model: str) -> None:
        self._reservations = _reserving.get()
        self._model = model
        self._call: str | None = None
        """The request that has a reservation; None for none."""
        self._is_sent = False
        self._is_answered = False
        self._input_tokens = 0
        """The estimated size of the request."""
        self._received = 0
        """The estimated size of what came of the reply, in tokens."""
        self._reported = ModelUsage()
        self.fault: Exception | None = None
        """Why a reservation could not be settled: no failure of the model."""

    async def reserve(self, request: LlmRequest) -> None:
        """Reserve what a request may use, and limit its output to that.

        Raises:
            BudgetUsedUp, ModelDenied: As `Reservations.reserve`.
        """
        if self._reservations is None:
            return
        self._call, self._is_sent, self._is_answered = uuid4().hex, False, False
        self._received, self._reported = 0, ModelUsage()
        self._input_tokens = round(input_tokens(request) * INPUT_MARGIN)
        wanted = request.config.max_output_tokens or ANSWER_TOKENS
        try:
            most = await self._reservations.reserve(
                self._call, self._model, self._input_tokens, wanted
            )
        except (BudgetUsedUp, ModelDenied):  # nothing is reserved
            self._call = None
            raise
        if most is None:
            self._call = None
        else:
            request.config.max_output_tokens = most

    def sent(self) -> None:
        """Note that the request is sent: from now on it may cost something."""
        self._is_sent = True

    async def note(self, response: LlmResponse) -> None:
        """Record a response; a complete one settles the request.

        That is done at once: ADK takes what follows it after the agent's tools.
        """
        if self._call is None:
            return
        if response.usage_metadata is not None:
            self._reported = reply_usage(response)
        if response.partial:
            self._received += count_message_tokens(response.content)
        else:
            self._received = max(self._received, count_message_tokens(response.content))
            await self._settle(is_reply=True)

    async def failed(self, error: Exception) -> None:
        """Settle a request that has failed.

        One that was refused, or did not reach its service, costs nothing. For one that was not
        answered in time the service may have worked.
        """
        self._is_sent = isinstance(error, TimeoutError) or self._received > 0
        await self.close()

    async def close(self) -> None:
        """Settle what is left, such as a request whose caller was cancelled."""
        if self._call is not None and not self._is_answered:
            await uninterrupted(self._settle(is_reply=False))
        self._call = None

    async def _settle(self, *, is_reply: bool) -> None:
        self._is_answered = is_reply
        if self._reservations is None or self._call is None:
            return
        try:
            await self._reservations.settle(
                self._call, self._model, self._used(), is_reply=is_reply
            )
        except Exception as error:
            self.fault = error
            raise

    def _used(self) -> ModelUsage:
        """Return what the request has used: as its service reported it, else as it seems."""
        if self._reported.tokens:
            return self._reported
        if not self._is_sent:
            return ModelUsage()
        return ModelUsage(input_tokens=self._input_tokens, output_tokens=self._received)
