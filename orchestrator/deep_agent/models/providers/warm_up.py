"""A first request that goes nowhere: clients load half of themselves only when they are used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import cache

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.genai import types

UNREACHABLE_URL = "http://127.0.0.1:9"
"""The discard port, where nothing answers on any machine of today."""
NO_KEY = "rehearsal"
WARM_UP_SECONDS = 10.0
"""A proxy may take the request and keep it; nothing depends on the rehearsal."""


@cache
def warm_up(make: Callable[[], BaseLlm]) -> None:
    """Send a request to UNREACHABLE_URL, once for each kind of model.

    Blocks for seconds: call it beside the loop.
    """
    asyncio.run(_ask(make()))


async def _ask(model: BaseLlm) -> None:
    for stream in (False, True):
        request = LlmRequest(
            contents=[types.UserContent("-")], config=types.GenerateContentConfig()
        )
        with contextlib.suppress(Exception):  # nobody answers
            async with asyncio.timeout(WARM_UP_SECONDS):
                async for _ in model.generate_content_async(request, stream=stream):
                    pass
