"""One client for all agents of a process.

Making one costs up to half a second of the event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, runtime_checkable

Client = TypeVar("Client")

CONNECT_TIMEOUT_SECONDS = 10.0
"""A service that takes longer to accept a connection is not there; the clients' default is about
the same."""

_clients: dict[tuple[asyncio.AbstractEventLoop, Hashable], object] = {}
_making = threading.Lock()


@runtime_checkable
class Preloading(Protocol):
    """A model that can do beforehand what its first call would do on the event loop."""

    def preload(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load the library and make the loop's client.

        Blocks for seconds, so call it beside the loop.
        """


def client_of(
    loop: asyncio.AbstractEventLoop | None, make: Callable[[], Client], variables: tuple[str, ...]
) -> Client:
    """The client of a loop, or of the running one; a client's connections belong to one loop.

    `variables` are those of the environment that the client reads when it is made.
    """
    loop = loop or asyncio.get_running_loop()
    key = (loop, (make, *(os.environ.get(name) for name in variables)))
    with _making:
        for other in [other for other in _clients if other[0].is_closed()]:
            del _clients[other]
        if key not in _clients:
            _clients[key] = make()
        return _clients[key]  # type: ignore[return-value] # what this function made
