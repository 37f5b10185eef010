"""What a request brings: its caller's jobs, and what belongs to the whole application."""

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
    """What all requests of one server process share."""

    client: JobClient
    feed: EventFeed
    changed: ChangedJobs
    audit: AuditLog
    notifications: Notifications
    metrics: Metrics
    uploads: Uploads = field(default_factory=Uploads)
    folders: PersonFolders | None = None
    """Those of the one person whose service this is; None where others use it."""


def service_of(request: Request) -> Service:
    """Return what all requests share."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """Return who asks, as the authentication found.

    Raises:
        NotAuthenticated: Nobody in particular.
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
