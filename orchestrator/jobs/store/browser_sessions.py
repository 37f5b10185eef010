"""Browser sessions and one-time login links: what they permit, under the hash of their secret."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic import BaseModel, ConfigDict
from redis.asyncio import Redis

from .api_keys import fingerprint
from .keys import Keys
from .redis_errors import redis_failures

SECRET_BYTES = 32
"""The random bytes of a session's id and of a link's token, so that nobody guesses them."""
MAX_SECRET_CHARACTERS = 128
"""The longest text that a request may present as one of them; longer texts are not looked up."""


class Grant(BaseModel):
    """The caller that a session or a login link identifies."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    owner: str
    tenant: str
    scopes: tuple[str, ...]
    credential: str
    """The id of the key that it was created with, whose end also ends the session; `operator` for
    the link of a person with access to Redis."""


class BrowserSessions:
    """The sessions and login links of one installation.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def open(self, grant: Grant, seconds: float) -> str:
        """Begin a session and return its id, the secret of its cookie."""
        return await self._put(self._keys.session, grant, seconds)

    async def get(self, session_id: str) -> Grant | None:
        """Return the caller of a session; None when it has ended or never existed."""
        if len(session_id) > MAX_SECRET_CHARACTERS:
            return None
        with redis_failures():
            stored: Any = await self._redis.get(self._keys.session(fingerprint(session_id)))
        return Grant.model_validate_json(stored) if stored else None

    async def end(self, session_id: str) -> None:
        """End a session, if there is one."""
        with redis_failures():
            await self._redis.delete(self._keys.session(fingerprint(session_id)))

    async def create_login(self, grant: Grant, seconds: float) -> str:
        """Return the token of a login link, which works once."""
        return await self._put(self._keys.login, grant, seconds)

    async def take_login(self, token: str) -> Grant | None:
        """Return the caller of a login link, which works once; None when it does not work."""
        if len(token) > MAX_SECRET_CHARACTERS:
            return None
        with redis_failures():  # in one step: if two people open it at once, one is logged in
            stored: Any = await self._redis.getdel(self._keys.login(fingerprint(token)))
        return Grant.model_validate_json(stored) if stored else None

    async def _put(self, place: Any, grant: Grant, seconds: float) -> str:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        with redis_failures():
            await self._redis.set(
                place(fingerprint(secret)), grant.model_dump_json(), px=int(seconds * 1000)
            )
        return secret
