"""The audit log in Redis: a stream with one entry for each call that would change something."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict
from redis.asyncio import Redis

from .keys import Keys
from .redis_errors import redis_failures

MAX_ENTRIES = 50_000
"""The most entries kept in Redis, some 20 MB. Every entry is also a line of the server's log, which
may be forwarded to a log archive."""
MAX_FIELD_CHARACTERS = 256
"""The longest text in an entry: names and ids, never what a person wrote."""

_ID = re.compile(r"\d{1,20}-\d{1,20}")


class AuditEntry(BaseModel):
    """One call, done or refused; neither texts of prompts nor keys."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = ""
    """The id in the stream: milliseconds since the epoch, and a number."""
    action: str
    """The action, such as `job.submit`, `job.cancel`, `approval.answer` or `login`."""
    outcome: str
    """`done`, or why not: `not allowed`, `not found`, …."""
    target: str = ""
    """The id of the job or the approval."""
    name: str = ""
    """The caller: the name of the key, or the subject of the token."""
    credential: str = ""
    """What was presented: a key's id, `static:<name>…`, `token:<its end>`, `operator`."""
    owner: str = ""
    tenant: str = ""
    request_id: str = ""
    address: str = ""


class AuditPage(BaseModel):
    """A part of the audit log, newest first."""

    model_config = ConfigDict(frozen=True)

    items: list[AuditEntry]
    next_cursor: str | None = None
    """The cursor of the next part; None at the end."""


class AuditStream:
    """The stream of one installation.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def append(self, entry: AuditEntry) -> None:
        """Add an entry; the oldest beyond `MAX_ENTRIES` are removed."""
        given = entry.model_dump(exclude={"id"}).items()
        fields: dict[Any, Any] = {
            name: str(value)[:MAX_FIELD_CHARACTERS] for name, value in given if value
        }
        with redis_failures():
            await self._redis.xadd(self._keys.audit, fields, maxlen=MAX_ENTRIES, approximate=True)

    async def page(self, cursor: str | None = None, limit: int = 100) -> AuditPage:
        """Return entries, newest first.

        Args:
            cursor: `next_cursor` of the page before; None for the newest.
            limit: The maximum number of entries.

        Raises:
            ValueError: The cursor is not one of this stream.
        """
        if cursor is not None and not _ID.fullmatch(cursor):
            raise ValueError("This list has not returned that cursor.")
        before = "+" if cursor is None else f"({cursor}"
        with redis_failures():
            found: Any = await self._redis.xrevrange(self._keys.audit, before, "-", count=limit + 1)
        items = [AuditEntry(**{**fields, "id": str(place)}) for place, fields in found[:limit]]
        return AuditPage(items=items, next_cursor=items[-1].id if len(found) > limit else None)
