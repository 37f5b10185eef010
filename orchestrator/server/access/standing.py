"""Responses that go on for long end when their caller's key is revoked or the session is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import Message, Send

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.server.access.authenticator import Authenticator
from fanout.orchestrator.server.access.callers import Caller
from fanout.orchestrator.server.access.sessions import Sessions

CHECK_SECONDS = 1.0
"""Between two looks at a key, for all of its streams together: a revocation counts within this."""
MAX_REMEMBERED = 10_000
"""Keys and sessions; beyond, all are looked at again."""


class Standing:
    """Knows whether callers may still have what they were let in for.

    Args:
        authenticator: Knows which keys work.
        sessions: Knows which sessions last.
        clock: Seconds.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        sessions: Sessions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._clock = clock
        self._looked: dict[str, tuple[float, bool]] = {}

    async def holds(self, caller: Caller, session_id: str | None) -> bool:
        """Return whether a caller may go on; while Redis does not respond, nobody was revoked.

        Args:
            caller: The caller.
            session_id: The browser session; None for a key or a token.
        """
        name = session_id or caller.key_id
        at, holds = self._looked.get(name, (float("-inf"), True))
        now = self._clock()
        if now - at < CHECK_SECONDS:
            return holds
        try:
            if session_id is None:
                holds = await self._authenticator.is_valid(caller.key_id)
            else:
                holds = await self._sessions.caller(session_id) is not None
        except LedgerUnavailable:
            return True
        if len(self._looked) >= MAX_REMEMBERED:
            self._looked.clear()
        self._looked[name] = (now, holds)
        return holds

    def ended(self, send: Send, caller: Caller, session_id: str | None) -> Send:
        """Return a `send` that ends a response in parts when the caller may not go on.

        The server then tells the application that the client has gone.
        """
        is_over = False

        async def checked(message: Message) -> None:
            nonlocal is_over
            if is_over:
                return
            is_part = message["type"] == "http.response.body" and message.get("more_body", False)
            if is_part and not await self.holds(caller, session_id):
                is_over = True
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        return checked
