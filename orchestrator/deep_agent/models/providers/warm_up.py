"""A first request to nobody, because clients load much of their code when they are first used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import cache

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.genai import types

UNREACHABLE_URL = "http://127.0.0.1:9"
"""The discard port, on which nothing listens on today's machines."""
NO_KEY = "warm-up"
WARM_UP_SECONDS = 10.0
"""A proxy may accept the request and not answer; nothing depends on it."""


@cache
def warm_up(make: Callable[[], BaseLlm]) -> None:
    """Send a request to UNREACHABLE_URL, once for each kind of model.

    It blocks for seconds: call it in a thread.

    Args:
        make: Creates the model.
    """
    asyncio.run(_ask(make()))


async def _ask(model: BaseLlm) -> None:
    for stream in (False, True):
        request = LlmRequest(
            contents=[types.UserContent("-")], config=types.GenerateContentConfig()
        )
        with contextlib.suppress(Exception):  # the request fails
            async with asyncio.timeout(WARM_UP_SECONDS):
                async for _ in model.generate_content_async(request, stream=stream):
                    pass
