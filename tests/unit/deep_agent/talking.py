"""A model for a whole team in one process.

Each agent has its own replies, and what each saw is kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from tests.unit.deep_agent.running import scripted


class Recorder(BaseLlm):
    """One agent's scripted model, which keeps the requests that it gets."""

    inner: Any
    requests: list[LlmRequest]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(
            llm_request.model_copy(update={"contents": list(llm_request.contents)})
        )
        async for response in self.inner.generate_content_async(llm_request, stream):
            yield response


def recorder(name: str, replies: list[dict[str, Any]]) -> Recorder:
    return Recorder(model=f"scripted:{name}", inner=scripted(replies, name), requests=[])


def seen(model: Recorder) -> str:
    """Everything that a model was ever shown, as text."""
    return "\n".join(
        content.model_dump_json(exclude_none=True)
        for request in model.requests
        for content in request.contents
    )


def first_message(model: Recorder) -> str:
    return "".join(part.text or "" for part in model.requests[0].contents[0].parts or [])
