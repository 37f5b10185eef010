"""Models through LiteLLM, without its prints, logs and requests for updates."""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from functools import cache

from google.adk.models import lite_llm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from fanout.orchestrator.deep_agent.adk.private_names import import_litellm
from fanout.orchestrator.deep_agent.models.providers.warm_up import NO_KEY, UNREACHABLE_URL, warm_up

_LOGGERS = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router")


@cache
def load() -> None:
    """Import LiteLLM; takes seconds."""
    # Else it fetches a table from the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault(
        "LITELLM_MODE", "PRODUCTION"
    )  # else it loads a `.env` of the folders above
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.disabled = True  # its records contain requests
    import_litellm()
    import litellm  # noqa: PLC0415 - see above

    litellm.suppress_debug_info = True  # a banner on standard output with each error
    litellm.telemetry = False
    for logger in loggers:
        logger.handlers.clear()  # ADK directs them to stdout, which is for payload


def _on_unreachable_url() -> lite_llm.LiteLlm:
    return lite_llm.LiteLlm(
        "openai/gpt-4o", api_base=UNREACHABLE_URL, api_key=NO_KEY, max_retries=0, num_retries=0
    )


class QuietLiteLlm(lite_llm.LiteLlm):
    """A model through LiteLLM, which makes one attempt: ResilientModel retries."""

    def __init__(self, model: str) -> None:
        # Not every service supports every parameter; unsupported ones are left out.
        super().__init__(model=model, max_retries=0, num_retries=0, drop_params=True)

    def preload(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Preloading.preload`; LiteLLM manages its clients itself."""
        del loop
        load()
        warm_up(_on_unreachable_url)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield ADK's responses, after loading LiteLLM in a thread."""
        await asyncio.to_thread(load)
        replies = super().generate_content_async(llm_request, stream=stream)
        async with contextlib.aclosing(replies):
            async for response in replies:
                yield response
