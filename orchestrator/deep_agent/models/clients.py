"""What the clients of all providers share: one for each loop, loaded before its first use.

Creating a client blocks for up to half a second, and it loads much of its code when it is first
used: a first request to an address where nothing listens loads that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Hashable
from functools import cache
from typing import Protocol, TypeVar, runtime_checkable

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.genai import types

Client = TypeVar("Client")

CONNECT_TIMEOUT_SECONDS = 10.0
"""A service that takes longer to accept a connection is unavailable; about the clients' default."""

_clients: dict[tuple[asyncio.AbstractEventLoop, Hashable], object] = {}
_making = threading.Lock()

UNREACHABLE_URL = "http://127.0.0.1:9"
"""The discard port, on which nothing listens on today's machines."""

NO_KEY = "warm-up"

WARM_UP_SECONDS = 10.0
"""A proxy may accept the request and not answer; nothing depends on it."""


@runtime_checkable
class Preloading(Protocol):
    """A model that can be loaded before its first call, which would block the event loop."""

    def preload(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load the library and create the loop's client.

        It blocks for seconds: call it in a thread.
        """


def loop_client(
    loop: asyncio.AbstractEventLoop | None, make: Callable[[], Client], variables: tuple[str, ...]
) -> Client:
    """Return the client of a loop; a client's connections belong to one loop.

    Args:
        loop: The loop; the running one when None.
        make: Creates a client; it blocks.
        variables: The environment variables that the client reads when it is created: with other
            values there is another client.
    """
    loop = loop or asyncio.get_running_loop()
    key = (loop, (make, *(os.environ.get(name) for name in variables)))
    with _making:
        for other in [other for other in _clients if other[0].is_closed()]:
            del _clients[other]
        if key not in _clients:
            _clients[key] = make()
        return _clients[key]  # type: ignore[return-value] # the client that `make` returned


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
