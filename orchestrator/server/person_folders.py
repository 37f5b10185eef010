"""The folders of the one person who runs the service on this machine, for that person's browser.

Only the embedded service on the loopback has them, and only for a browser that logged in with a
link from a command of this machine: the owner of that link has the person's files anyway. A key or
a token may belong to another person's program, so it gets none.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..client import JobClient
from ..configuration.api_settings import ApiSettings, is_loopback
from ..jobs.failures import InvalidJob
from ..jobs.spec import StartFiles
from ..landing.runs import Landing, Runs, merge_into
from ..workspace.merge_report import MergeReport

MAX_LISTED = 1_000
"""The most folders of one list: a person does not read more."""
MAX_PATH_CHARACTERS = 4_096
"""The longest path that Linux takes."""


@dataclass(frozen=True)
class ListedFolder:
    """A folder and those in it."""

    path: Path
    parent: Path | None
    """The folder above it; None: nothing above it may be used."""
    names: Sequence[str]
    """The folders in it that a job may start from, sorted."""
    is_repository: bool
    """Whether it is in the work tree of a Git repository."""
    omitted: int = 0
    """How many more folders it has."""


def person_folders(
    client: JobClient, api: ApiSettings, state_dir: Path, *, is_embedded: bool
) -> PersonFolders | None:
    """Return the folders of this machine's person; None if others use the service.

    Args:
        client: The connection of the service.
        api: The settings of the service.
        state_dir: The state folder.
        is_embedded: Whether its Redis is that of the state folder, and so of one person.
    """
    is_of_one_person = (
        is_embedded
        and is_loopback(api.host)
        and api.public_url is None
        and not (api.trusted_proxies or api.trusted_hosts or api.allowed_origins)
    )
    if not is_of_one_person:
        return None
    home = Path.home()
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was deleted
        here = home
    return PersonFolders(client, home, here, state_dir)


class MergeFolders(ABC):
    """The folders into which a person merges the changes of jobs.

    Args:
        client: The connected client.
        state_dir: The state folder, which keeps both sides of conflicts.
    """

    def __init__(self, client: JobClient, state_dir: Path) -> None:
        self._client = client
        self._runs = Runs(state_dir)

    @abstractmethod
    def _find(self, path: str) -> Path:
        """Return a folder that may be used; blocks.

        Raises:
            InvalidJob: It does not exist, or is none of these.
        """

    async def apply(self, job_id: str, path: str, *, check: bool) -> MergeReport:
        """Merge a job's changes into a folder; changes that become code are held back.

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


class PersonFolders(MergeFolders):
    """The folders below a person's home folder, and below the service's starting folder.

    Hidden folders are not among them: they hold settings and keys. Links are followed, and their
    targets have to be such folders too.

    Args:
        client: The connected client.
        home: The person's home folder.
        here: The folder in which the service was started.
        state_dir: The state folder, which keeps both sides of conflicts.
    """

    def __init__(self, client: JobClient, home: Path, here: Path, state_dir: Path) -> None:
        super().__init__(client, state_dir)
        self._home = home.resolve()
        here = here.resolve()
        is_project = here != here.parent and here not in self._home.parents
        self._roots = (self._home, *((here,) if is_project else ()))

    async def look(self, path: str) -> ListedFolder:
        """Return a folder with the folders in it.

        Args:
            path: Its absolute path; empty: the folder in which the service was started.

        Raises:
            InvalidJob: It is not a folder that may be used.
        """
        return await asyncio.to_thread(self._look, path)

    async def start_files(self, path: str, agent: str) -> tuple[Path, StartFiles]:
        """Store what a job needs to start from a folder, as `fanout submit --workspace` does.

        Raises:
            InvalidJob: It is not a folder that may be used.
            UnknownAgent: The agent does not exist.
            WorkspaceUnusable: The folder cannot be read, or is too large.
        """
        folder = await asyncio.to_thread(self._find, path)
        return folder, await self._client.start_files(folder, agent)

    async def remember(self, job_id: str, folder: Path) -> None:
        """Store the folder that a job has started from: its changes can be merged into it."""
        landing = Landing(workspace=folder, lands=False)
        await asyncio.to_thread(self._runs.remember, job_id, landing)

    async def folder_of(self, job_id: str) -> Path | None:
        """Return the folder that a job has started from; None if it is unknown here."""
        landing = await asyncio.to_thread(self._runs.landing, job_id)
        return None if landing is None else landing.workspace

    def _look(self, path: str) -> ListedFolder:
        folder = self._find(path or str(self._roots[-1]))
        try:
            with os.scandir(folder) as entries:
                names = sorted(filter(_is_shown, (one.name for one in entries if _is_folder(one))))
        except OSError as error:
            raise InvalidJob(f"The folder cannot be read ({error.strerror}).") from None
        return ListedFolder(
            path=folder,
            parent=None
            if folder in self._roots and not self._is_below(folder.parent)
            else folder.parent,
            names=list(islice(names, MAX_LISTED)),
            is_repository=any((one / ".git").exists() for one in (folder, *folder.parents)),
            omitted=max(0, len(names) - MAX_LISTED),
        )

    def _find(self, path: str) -> Path:
        try:
            given = Path(path)
            folder = given.resolve(strict=True)
            is_folder = given.is_absolute() and len(path) <= MAX_PATH_CHARACTERS and folder.is_dir()
        except (OSError, ValueError, RuntimeError):  # missing, a NUL, links in a circle
            is_folder = False
        if not is_folder or not self._is_below(folder):
            below = " and ".join(map(str, dict.fromkeys(self._roots)))
            raise InvalidJob(
                f"Choose an existing folder below {below} that is not hidden; for others: "
                "fanout submit --workspace DIR."
            )
        if not os.access(folder, os.R_OK | os.X_OK):
            raise InvalidJob("You may not read this folder.")
        return folder

    def _is_below(self, folder: Path) -> bool:
        """Return whether a resolved folder is a root or below one, and no part of it is hidden."""
        parts = [
            folder.relative_to(root).parts for root in self._roots if folder.is_relative_to(root)
        ]
        return any(all(map(_is_shown, one)) for one in parts)


def _is_shown(name: str) -> bool:
    return not name.startswith(".")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
