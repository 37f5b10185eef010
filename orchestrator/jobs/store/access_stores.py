"""All stores of who may use the service, on one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from .api_keys import KeyStore
from .audit_stream import AuditStream
from .browser_sessions import BrowserSessions
from .connection import connect, identity
from .keys import Keys


@dataclass(frozen=True)
class AccessStores:
    """The stores of one installation."""

    keys: KeyStore
    sessions: BrowserSessions
    audit: AuditStream
    redis: Redis

    async def operator(self) -> str:
        """Return who has opened the connection, as far as Redis or this machine knows it.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        return await identity(self.redis)


@asynccontextmanager
async def open_access_stores(redis_url: str, prefix: str) -> AsyncIterator[AccessStores]:
    """Yield the stores, which connect when they are first used.

    Args:
        redis_url: The Redis of the installation.
        prefix: The beginning of its keys (FANOUT_REDIS_PREFIX).
    """
    redis, keys = connect(redis_url), Keys(prefix)
    try:
        yield AccessStores(
            KeyStore(redis, keys), BrowserSessions(redis, keys), AuditStream(redis, keys), redis
        )
    finally:
        await redis.aclose()
