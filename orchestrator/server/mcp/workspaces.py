"""The files that jobs of a client elsewhere start from: uploaded ones, or a Git repository's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.server.owned_jobs import OwnedJobs
from fanout.orchestrator.server.uploads import Uploads
from fanout.orchestrator.workspace.exchange.cloned import GitSource, check_source

_GIT = "https://"


class StoredWorkspace(NamedTuple):
    """What jobs start from."""

    start: StartFiles
    left_at_home: Sequence[str] = ()
    """The paths of files that are not among them."""
    limits: Sequence[str] = ()
    """What Git cannot do with them, a sentence each."""


class Workspaces(Protocol):
    """From the text that names a workspace to what jobs start from."""

    async def start_files(self, workspace: str, agent: str) -> StoredWorkspace:
        """Return the stored files.

        Args:
            workspace: What the client names.
            agent: The agent that gets it.

        Raises:
            JobFailure: It cannot be a workspace; the text says why.
        """


class RemoteWorkspaces:
    """The workspaces that a service can reach.

    Args:
        jobs: The caller's.
        uploads: Clones repositories.
    """

    def __init__(self, jobs: OwnedJobs, uploads: Uploads) -> None:
        self._jobs = jobs
        self._uploads = uploads

    async def start_files(self, workspace: str, agent: str) -> StoredWorkspace:
        """Return an uploaded snapshot, or that of a repository that is cloned.

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
