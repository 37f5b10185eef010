"""The context of a request: its caller's jobs, and the parts of the whole application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.server.access.audit import AuditLog
from fanout.orchestrator.server.access.callers import Caller, NotAuthenticated
from fanout.orchestrator.server.event_feed import ChangedJobs, EventFeed
from fanout.orchestrator.server.metrics import Metrics
from fanout.orchestrator.server.notifications.notifier import Notifications
from fanout.orchestrator.server.owned_jobs import OwnedJobs
from fanout.orchestrator.server.person_folders import PersonFolders
from fanout.orchestrator.server.uploads import Uploads


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


def service_of(request: Request) -> Service:
    """Return the common parts of all requests."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
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
    service = service_of(request)
    return OwnedJobs(service.client, caller_of(request), service.audit)


Jobs = Annotated[OwnedJobs, Depends(jobs_of)]
Shared = Annotated[Service, Depends(service_of)]
