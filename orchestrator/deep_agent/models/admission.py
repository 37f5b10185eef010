"""The gate before a model: every request that goes to a service asks for its turn first."""

from __future__ import annotations

from typing import Protocol, runtime_checkable
from uuid import uuid4

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from orchestrator.deep_agent.models.errors import asked_for_seconds, is_rate_limited
from orchestrator.deep_agent.models.size import CHARACTERS_PER_TOKEN, tokens_in
from orchestrator.deep_agent.models.usage import reply_usage

ANSWER_TOKENS = 8_192
"""What an answer is taken to need where the request does not limit it: what ADK allows Claude by
default."""
INPUT_MARGIN = 4 / 3
"""On the estimate of a request's size: code and most languages have fewer characters a token than
English."""


@runtime_checkable
class ModelAdmission(Protocol):
    """Lets requests to models go, each when it is its turn.

    `request` names one request, `model` is written as in settings and definitions, `tokens` is what
    the request may take with its answer. What `enter` raises ends the run.
    """

    async def enter(self, request: str, model: str, tokens: int) -> None:
        """Wait until the request may be sent; it is sent at once then."""

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """The request was answered, and used so many tokens."""

    async def cut(
        self, request: str, model: str, tokens: int, asked_seconds: float | None
    ) -> object:
        """The service refused it because there are too many; it may say for how long to wait."""


class Turn:
    """One request's way through the gate; without one it goes at once."""

    def __init__(self, admission: ModelAdmission | None, model: str, request: LlmRequest) -> None:
        self._admission = admission
        self._model = model
        self._id = uuid4().hex
        self._tokens = _estimate(request) if admission is not None else 0
        self._used = 0

    async def comes(self) -> None:
        """Wait for it."""
        if self._admission is not None:
            await self._admission.enter(self._id, self._model, self._tokens)

    def note(self, response: LlmResponse) -> None:
        """See what a response says of its tokens; the last one counts."""
        self._used = reply_usage(response).tokens or self._used

    async def answered(self) -> None:
        """The reply is complete."""
        if self._admission is not None:
            await self._admission.settle(
                self._id, self._model, self._tokens, self._used or self._tokens
            )

    async def failed(self, error: Exception) -> None:
        """There was no reply, or not all of it.

        What it took is not known, unless it was too many.
        """
        if self._admission is not None and is_rate_limited(error):
            await self._admission.cut(self._id, self._model, self._tokens, asked_for_seconds(error))


def _estimate(request: LlmRequest) -> int:
    """What a request may take with its answer, in tokens."""
    config = request.config
    tools = [tool for tool in config.tools or [] if isinstance(tool, types.Tool)]
    declared = [tool.model_dump_json(exclude_none=True) for tool in tools]
    standing = (
        sum(map(len, (*declared, str(config.system_instruction or "")))) // CHARACTERS_PER_TOKEN
    )
    said = sum(tokens_in(content) for content in request.contents)
    return round((standing + said) * INPUT_MARGIN) + (config.max_output_tokens or ANSWER_TOKENS)
