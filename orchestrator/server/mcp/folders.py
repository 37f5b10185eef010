"""The folders of this machine that an MCP client may hand to agents and merge changes into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.landing.runs import Runs, merge_into
from fanout.orchestrator.server.mcp.workspaces import StoredWorkspace
from fanout.orchestrator.workspace.merge_report import MergeReport


def usable_roots(given: Sequence[Path], here: Path, home: Path) -> tuple[Path, ...]:
    """Return the folders below which workspaces may lie.

    Args:
        given: What a person named.
        here: The folder that the server was started in, which counts if nothing was named. Clients
            without a project start servers in the home folder or in `/`: these do not count, since
            all of a person's files are below them.
        home: The person's home folder.
    """
    if given:
        return tuple(folder.resolve() for folder in given)
    is_project = here != home and here not in home.parents
    return (here,) if is_project else ()


class LocalFolders:
    """The folders below some roots.

    Args:
        client: The connected client.
        roots: The folders below which all others lie; the first one is where paths begin.
        state_dir: The state folder, which keeps both sides of conflicts.
    """

    def __init__(self, client: JobClient, roots: Sequence[Path], state_dir: Path) -> None:
        self._client = client
        self._roots = roots
        self._runs = Runs(state_dir)

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

    async def apply(self, job_id: str, path: str, *, check: bool) -> MergeReport:
        """Merge a job's changes into a folder; what becomes code by itself is held back.

        Args:
            job_id: The job, which the caller may read.
            path: The folder.
            check: Only report what would happen.

        Raises:
            InvalidJob: As `start_files`; or the job has not ended, or changed nothing.
            BlobMissing: The changes have expired.
            WorkspaceUnusable: The folder cannot be written.
        """
        folder = await asyncio.to_thread(self._find, path)
        return await merge_into(self._client, self._runs, job_id, folder, check=check)

    def _find(self, path: str) -> Path:
        if not self._roots:
            raise InvalidJob(
                "This server may use no folder: it was started in a home folder or above. Start it "
                "in a project, or name one: fanout mcp serve --workspace DIR."
            )
        try:
            folder = (self._roots[0] / path).resolve()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, links in a circle
            raise InvalidJob("The path is none of a folder.") from None
        if not any(folder.is_relative_to(root) for root in self._roots):
            below = ", ".join(map(str, self._roots))
            raise InvalidJob(
                f"{path!r} is not below {below}: start the server with --workspace for it."
            )
        if not folder.is_dir():
            raise InvalidJob(f"{path!r} is not a folder.")
        return folder
