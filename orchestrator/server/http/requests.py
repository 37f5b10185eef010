"""The context of a request: its caller's jobs, and the parts of the whole application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from ...client import JobClient
from ..access.audit import AuditLog
from ..access.callers import Caller, NotAuthenticated
from ..event_feed import ChangedJobs, EventFeed
from ..metrics import Metrics
from ..notifications.notifier import Notifications
from ..owned_jobs import OwnedJobs
from ..person_folders import PersonFolders
from ..uploads import Uploads


@dataclass(frozen=True)
class Service:
    """The common parts of all requests of one server process."""

    client: JobClient
    feed: EventFeed
    changed: ChangedJobs
    audit: AuditLog
    notifications: Notifications
    metrics: Metrics
    uploads: Uploads = field(default_factory=Uploads)
    folders: PersonFolders | None = None
    """The folders of the one person who owns this service; None where others use it."""


def request_service(request: Request) -> Service:
    """Return the common parts of all requests."""
    service: Service = request.app.state.service
    return service


def request_caller(request: Request) -> Caller:
    """Return the authenticated caller.

    Raises:
        NotAuthenticated: There is none.
    """
    caller = request.scope.get("state", {}).get("caller")
    if not isinstance(caller, Caller):
        raise NotAuthenticated("Send a key as `Authorization: Bearer …` (fanout keys create).")
    return caller


def jobs_of(request: Request) -> OwnedJobs:
    """Return the jobs of the caller."""
    service = request_service(request)
    return OwnedJobs(service.client, request_caller(request), service.audit)


Jobs = Annotated[OwnedJobs, Depends(jobs_of)]
Shared = Annotated[Service, Depends(request_service)]
