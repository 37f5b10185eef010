"""The audit log: who has changed something, or tried to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import structlog

from ...configuration.api_settings import Scope
from ...jobs.failures import LedgerUnavailable
from ...jobs.store.audit_stream import (
    AuditEntry,
    AuditPage,
    AuditStream,
)
from .callers import Caller

MAX_PAGE_ENTRIES = 500
"""The most entries of one page: some 150 kB."""
MAX_SCANNED = 5_000
"""The most entries that are read for one page: a tenth of all, in some 50 ms."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RequestFacts:
    """The facts that the audit log records of a request besides its caller."""

    request_id: str = ""
    address: str = ""


_facts: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


@contextmanager
def request_facts(facts: RequestFacts) -> Iterator[None]:
    """Have the audit log record these facts for all actions in this context."""
    token = _facts.set(facts)
    try:
        yield
    finally:
        _facts.reset(token)


class AuditLog:
    """Records each call that changes something, once: in Redis and in the server's log.

    It never contains a text of a prompt, nor a key.

    Args:
        stream: The store of the newest entries.
    """

    def __init__(self, stream: AuditStream) -> None:
        self._stream = stream

    async def record(
        self, caller: Caller | None, action: str, target: str = "", outcome: str = "done"
    ) -> None:
        """Add one entry.

        The call is already done, so if Redis does not accept the entry, it is in the server's log
        only.

        Args:
            caller: The caller; None: unknown.
            action: The action, such as `job.cancel`.
            target: The id of the job or the approval.
            outcome: `done`, or why not.
        """
        facts = _facts.get() or RequestFacts()
        entry = AuditEntry(
            action=action,
            outcome=outcome,
            target=target,
            name=caller.name if caller else "",
            credential=caller.key_id if caller else "",
            owner=caller.owner if caller else "",
            tenant=caller.tenant if caller else "",
            request_id=facts.request_id,
            address=facts.address,
        )
        logger.info("audit", **entry.model_dump(exclude={"id"}))
        try:
            await self._stream.append(entry)
        except LedgerUnavailable as failure:
            logger.warning("audit_entry_not_stored", why=type(failure).__name__)

    async def page(self, caller: Caller, cursor: str | None = None, limit: int = 100) -> AuditPage:
        """Return entries of those whose jobs a caller may see, newest first.

        Args:
            caller: The caller.
            cursor: `next_cursor` of the previous page; None for the newest.
            limit: The maximum number of entries, at most `MAX_PAGE_ENTRIES`. A page may have fewer,
                because at most `MAX_SCANNED` are read for it.

        Raises:
            NotAllowed: The caller lacks the scope `admin`.
            ValueError: The cursor is not one of this log.
            LedgerUnavailable: Redis does not respond.
        """
        caller.require(Scope.ADMIN)
        limit = min(max(limit, 1), MAX_PAGE_ENTRIES)
        found: list[AuditEntry] = []
        for _ in range(MAX_SCANNED // MAX_PAGE_ENTRIES):
            page = await self._stream.page(cursor, MAX_PAGE_ENTRIES)
            for entry in page.items:
                if caller.owns(entry):
                    found.append(entry)
                if len(found) == limit:
                    is_last = page.next_cursor is None and entry.id == page.items[-1].id
                    return AuditPage(items=found, next_cursor=None if is_last else entry.id)
            cursor = page.next_cursor
            if cursor is None:
                break
        return AuditPage(items=found, next_cursor=cursor)
