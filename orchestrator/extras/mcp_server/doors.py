"""Finds the jobs and the files of a tool's caller: a door for each way to the server.

Remote clients start jobs from uploaded files or a Git repository; those of this machine give
folders to agents and merge changes into them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mcp.server.mcpserver import Context

from ...client import JobClient
from ...configuration.api_settings import EVERYBODY, Scope
from ...jobs.failures import InvalidJob
from ...jobs.spec import StartFiles
from ...server.access.callers import Caller, NotAuthenticated
from ...server.http.requests import Service, request_caller
from ...server.owned_jobs import OwnedJobs
from ...server.person_folders import MergeFolders
from ...server.uploads import Uploads
from ...workspace.exchange.cloned import GitSource, check_source

_GIT = "https://"
OPERATOR = Caller("operator", EVERYBODY, EVERYBODY, frozenset(Scope), policy=None)
"""The name of the person who starts the server on this machine, to whom the command line gives
every job as well."""

ToolContext = Context[Any, Any]


def usable_roots(given: Sequence[Path], here: Path, home: Path) -> tuple[Path, ...]:
    """Return the folders below which workspaces may lie.

    Args:
        given: The folders that a person named.
        here: The folder in which the server was started, which counts if none was named. Clients
            without a project start servers in the home folder or in `/`: these do not count,
            because all of a person's files are below them.
        home: The person's home folder.
    """
    if given:
        return tuple(folder.resolve() for folder in given)
    is_project = here != home and here not in home.parents
    return (here,) if is_project else ()


class LocalFolders(MergeFolders):
    """The folders below some roots.

    Args:
        client: The connected client.
        roots: The folders below which all others lie; paths are relative to the first one.
        state_dir: The state folder, which keeps both sides of conflicts.
    """

    def __init__(self, client: JobClient, roots: Sequence[Path], state_dir: Path) -> None:
        super().__init__(client, state_dir)
        self._roots = roots

    async def start_files(self, workspace: str, agent: str) -> StoredWorkspace:
        """Store what jobs need to start from a folder, and return it.

        Raises:
            InvalidJob: The folder does not exist, or is not below a root.
            UnknownAgent: The agent does not exist.
            WorkspaceUnusable: The folder cannot be read, or is too large.
        """
        folder = await asyncio.to_thread(self._find, workspace)
        start = await self._client.start_files(folder, agent)
        stored = self._client.workspace(folder)
        return StoredWorkspace(start, [file.path for file in stored.left_at_home], stored.limits)

    def _find(self, path: str) -> Path:
        if not self._roots:
            raise InvalidJob(
                "This server may use no folder, because it was started in a home folder or "
                "above. Start it in a project, or name one: fanout mcp serve --workspace DIR."
            )
        try:
            folder = (self._roots[0] / path).resolve()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, links in a circle
            raise InvalidJob("The path is not that of a folder.") from None
        if not any(folder.is_relative_to(root) for root in self._roots):
            below = ", ".join(map(str, self._roots))
            raise InvalidJob(
                f"{path!r} is not below {below}: start the server with --workspace for it."
            )
        if not folder.is_dir():
            raise InvalidJob(f"{path!r} is not a folder.")
        return folder


class StoredWorkspace(NamedTuple):
    """The stored files that jobs start from."""

    start: StartFiles
    left_at_home: Sequence[str] = ()
    """The paths of files that are not among them."""
    limits: Sequence[str] = ()
    """What Git cannot do with them, a sentence each."""


class Workspaces(Protocol):
    """Finds the stored files of a workspace by the text that names it."""

    async def start_files(self, workspace: str, agent: str) -> StoredWorkspace:
        """Return the stored files.

        Args:
            workspace: The text of the client.
            agent: The agent that gets it.

        Raises:
            JobFailure: It cannot be a workspace; the text says why.
        """


class RemoteWorkspaces:
    """The workspaces that a service can reach.

    Args:
        jobs: The caller's jobs.
        uploads: Clones repositories.
    """

    def __init__(self, jobs: OwnedJobs, uploads: Uploads) -> None:
        self._jobs = jobs
        self._uploads = uploads

    async def start_files(self, workspace: str, agent: str) -> StoredWorkspace:
        """Return an uploaded snapshot, or that of a cloned repository.

        Raises:
            CloneRefused: The repository's address is not allowed, it is too large, or Git failed.
        """
        del agent
        if not workspace.startswith(_GIT):
            return StoredWorkspace(StartFiles(workspace))
        url, _, ref = workspace.partition("#")
        source = GitSource(url, ref or "HEAD", depth=1)
        check_source(source)
        stored = await self._uploads.repository(self._jobs, source)
        left_out = [file.path for file in stored.left_out]
        return StoredWorkspace(StartFiles(stored.snapshot), left_out, stored.limits)


@dataclass(frozen=True)
class Opened:
    """The jobs and folders of one call."""

    jobs: OwnedJobs
    workspaces: Workspaces
    folders: LocalFolders | None = None
    """The folders of the client, if it is on this machine."""


class Door(Protocol):
    """One way to reach the server."""

    is_local: bool
    """Whether the client's folders are on this machine, so that a workspace is a path."""

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[Opened]:
        """Return the jobs and folders of one call.

        Args:
            context: The call.

        Raises:
            NotAuthenticated: The call has no caller.
            LedgerUnavailable: No Redis is configured or running.
        """


class DoorTools:
    """Tools or resources for all that come through one door.

    Args:
        door: Where the caller's jobs and files are found.
    """

    def __init__(self, door: Door) -> None:
        self._door = door


class ServiceDoor:
    """The door of `fanout serve`: the service has authenticated the caller.

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
        caller = request_caller(request)
        jobs = OwnedJobs(service.client, caller, service.audit)
        yield Opened(jobs, RemoteWorkspaces(jobs, service.uploads))


class LocalDoor:
    """The door of `fanout mcp serve`: all jobs and folders of this machine's command line.

    Each call opens a new connection, so that services may start, stop and change their settings
    meanwhile.

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
    """An audit log that records nothing: the journals show the operator's actions."""

    async def record(
        self, caller: Caller, action: str, target: str = "", outcome: str = "done"
    ) -> None:
        """Record nothing."""
