"""Where the tools find the jobs of who calls them: a door for each way to reach the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from mcp.server.mcpserver import Context

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.api_settings import EVERYBODY, Scope
from fanout.orchestrator.server.access.callers import Caller, NotAuthenticated
from fanout.orchestrator.server.http.requests import Service, caller_of
from fanout.orchestrator.server.mcp.folders import LocalFolders
from fanout.orchestrator.server.mcp.workspaces import RemoteWorkspaces, Workspaces
from fanout.orchestrator.server.owned_jobs import OwnedJobs

OPERATOR = Caller("operator", EVERYBODY, EVERYBODY, frozenset(Scope), policy=None)
"""Who starts the server on this machine: the command line gives that person every job as well."""

ToolContext = Context[Any, Any]


@dataclass(frozen=True)
class Opened:
    """What one call may use."""

    jobs: OwnedJobs
    workspaces: Workspaces
    folders: LocalFolders | None = None
    """The folders of the client, if it is on this machine."""


class Door(Protocol):
    """One way to reach the server."""

    is_local: bool
    """Whether the client's folders are on this machine, so that a workspace is a path."""

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[Opened]:
        """Return what one call may use.

        Args:
            context: The call.

        Raises:
            NotAuthenticated: Nobody in particular calls.
            LedgerUnavailable: No Redis is configured or running.
        """


class ServiceDoor:
    """Of `fanout serve`: the caller is the one whom the service has authenticated.

    Args:
        service: What all requests share.
    """

    is_local = False

    def __init__(self, service: Service) -> None:
        self._service = service

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[Opened]:
        """Yield the jobs of the caller of a request."""
        service, request = self._service, context.request_context.request
        if request is None:
            raise NotAuthenticated("This server is reached over HTTP only.")
        caller = caller_of(request)
        jobs = OwnedJobs(service.client, caller, service.audit)
        yield Opened(jobs, RemoteWorkspaces(jobs, service.uploads))


class LocalDoor:
    """Of `fanout mcp serve`: everything that the command line of this machine reaches.

    Each call connects anew, so that services may start, stop and change their settings meanwhile.

    Args:
        connect: Returns a connected client.
        folders: Returns the folders that a client may use.
    """

    is_local = True

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[JobClient]],
        folders: Callable[[JobClient], LocalFolders],
    ) -> None:
        self._connect = connect
        self._folders = folders

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[Opened]:
        """Yield the jobs of everybody, and the folders."""
        del context
        async with self._connect() as client:
            folders = self._folders(client)
            yield Opened(OwnedJobs(client, OPERATOR, _NoAudit()), folders, folders)


class _NoAudit:
    """The journals say what the operator did, as for the command line."""

    async def record(
        self, caller: Caller, action: str, target: str = "", outcome: str = "done"
    ) -> None:
        """Record nothing."""
