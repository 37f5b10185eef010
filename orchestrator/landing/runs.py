"""Runs: root jobs that a person started for a folder, and the landing of their changes there.

The folder of a run is known only on its machine: `runs/` of the state folder has a file for each
run. So a second terminal, or a command a week later, can follow a run and land it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from ..client import JobClient
from ..jobs.failures import InvalidJob
from ..jobs.result import JobResult
from ..path_text import os_path, path_text
from ..private_files import create_private_file, make_private_folder
from ..workspace.merge_report import MergeReport
from ..workspace.rooted import RootedFolder
from .branch import BranchLanding, BranchReport, land_on_branch
from .conflicts import ConflictingFile, KeptConflicts, collect

KEPT_RUNS = 1000
"""The most runs of one state folder: the newest ones; a file has some hundred bytes."""


StoredPath = Annotated[
    Path,
    BeforeValidator(lambda path: os_path(path) if isinstance(path, str) else path),
    PlainSerializer(lambda path: path_text(str(path)), when_used="json"),
]
"""A path that is stored as its path text."""


class Landing(BaseModel):
    """Where the changes of a run are merged when it has succeeded."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    workspace: StoredPath
    """The folder that the run started from."""
    lands: bool = True
    """Whether the changes are merged. False: they are left to a later `fanout apply`."""
    branch: str | None = None
    """The new branch for commits of the changes; None: they are merged into the folder."""
    base_commit: str | None = None
    """The commit that was checked out in the folder when the run started."""
    include_executable_config: bool = False
    """Whether a person has permitted the merge of changes that become code on the host."""
    continues: str | None = None
    """The run that this one continues, whose changes land before its own."""
    landed: bool = False
    """Whether all its changes have been merged. They are not merged again, because the person may
    have continued from there."""
    landed_commit: str | None = None
    """The last commit of its branch."""


@dataclass(frozen=True)
class LandingReport:
    """The result of a landing."""

    merge: MergeReport
    branch: BranchReport | None = None
    """None if it was merged into the folder."""
    conflicts_kept: Path | None = None
    """The folder with both sides of the conflicts."""


class Runs:
    """The runs that were started on this machine.

    Args:
        state_dir: The state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "runs"
        self.conflicts = KeptConflicts(state_dir)

    def remember(self, job_id: str, landing: Landing) -> None:
        """Store where a run lands, and whether it has landed.

        Args:
            job_id: The run's root job.
            landing: Where.

        Raises:
            OSError: The state folder cannot be written to.
        """
        make_private_folder(self._folder)
        draft = self._folder / f"{job_id}.{secrets.token_hex(4)}.new"
        with create_private_file(draft) as file:
            file.write(landing.model_dump_json().encode())
        draft.replace(self._folder / f"{job_id}.json")
        for old in sorted(self._folder.glob("*.json"))[:-KEPT_RUNS]:
            old.unlink(missing_ok=True)
            self.conflicts.forget(old.stem)

    def landing(self, job_id: str) -> Landing | None:
        """Return where a run lands; None for a job that was not started by `fanout run` here."""
        with contextlib.suppress(OSError, ValidationError):
            return Landing.model_validate_json((self._folder / f"{job_id}.json").read_bytes())
        return None

    def find_last(self, folder: Path) -> str | None:
        """Return the id of the newest run of a folder, or of a folder above it; None without one.

        Args:
            folder: An absolute path without links.
        """
        places = {folder, *folder.parents}
        with contextlib.suppress(OSError):
            for file in sorted(self._folder.glob("*.json"), reverse=True):
                landing = self.landing(file.stem)
                if landing is not None and landing.workspace in places:
                    return file.stem
        return None


async def land(
    client: JobClient, runs: Runs, result: JobResult, landing: Landing
) -> LandingReport | None:
    """Land the changes of a run, after those of the runs that it continues.

    Args:
        client: Reads the changes.
        runs: The records of which runs have landed.
        result: The result of the run's root job.
        landing: Where they land.

    Returns:
        None when nothing lands: the run failed or changed nothing, a person wants to merge, or
        everything has landed before.

    Raises:
        InvalidJob: The folder no longer exists.
        BlobMissing: The changes have expired.
        WorkspaceUnusable: The folder cannot be written.
        MergeUndone, MergeUnfinished: The disk is full.
        BranchUnusable: The branch cannot be created.
    """
    if not (landing.lands and result.success and result.changes) or landing.landed:
        return None
    if not await asyncio.to_thread(landing.workspace.is_dir):
        raise InvalidJob(
            f"The run's folder {landing.workspace} no longer exists; to land it elsewhere: "
            f"fanout apply {result.job_id} --into DIR"
        )
    before = await asyncio.to_thread(_not_landed, runs, landing)
    if landing.branch is not None:
        return await _land_on_branch(client, runs, result, landing, before)
    for job_id, earlier_landing in before:
        earlier = await client.result(job_id)
        if earlier is not None and earlier.changes:
            await _merge(client, runs, earlier, earlier_landing)
    return await _merge(client, runs, result, landing)


def _not_landed(runs: Runs, landing: Landing) -> list[tuple[str, Landing]]:
    """Return the runs before a run that have not landed in its folder, first to last."""
    found: list[tuple[str, Landing]] = []
    job_id = landing.continues
    while job_id and (before := runs.landing(job_id)) and not before.landed:
        if before.workspace == landing.workspace:
            found.append((job_id, before))
        job_id = before.continues
    return found[::-1]


def find_base(runs: Runs, landing: Landing) -> str | None:
    """Return the commit that a run's branch starts from.

    That is the last commit of the branch of the continued run, or the commit that was checked out
    when the first run without a landing started.
    """
    base, job_id = landing.base_commit, landing.continues
    while job_id and (before := runs.landing(job_id)):
        if before.landed:
            return before.landed_commit or base
        base, job_id = before.base_commit or base, before.continues
    return base


async def _land_on_branch(
    client: JobClient,
    runs: Runs,
    result: JobResult,
    landing: Landing,
    before: list[tuple[str, Landing]],
) -> LandingReport:
    assert landing.branch is not None  # noqa: S101 - the caller has looked
    where = BranchLanding(
        landing.workspace,
        landing.branch,
        await asyncio.to_thread(find_base, runs, landing),
        landing.include_executable_config,
    )
    report = await land_on_branch(client, [*(job_id for job_id, _ in before), result.job_id], where)
    if report.outcome == "before":
        return LandingReport(report.merge, report)
    kept = await _keep(runs, result.job_id, report.conflicts)
    if report.merge.complete:
        for job_id, one in (*before, (result.job_id, landing)):
            await _remember_landed(runs, job_id, one, report.tip)
    return LandingReport(report.merge, report, kept)


async def _merge(
    client: JobClient, runs: Runs, result: JobResult, landing: Landing
) -> LandingReport | None:
    report = await client.merge(
        result,
        landing.workspace,
        include_executable_config=landing.include_executable_config,
    )
    kept = None
    if report is not None:
        kept = await keep_conflicts(client, runs, result.job_id, landing.workspace, report)
    if report is None or report.complete:
        await _remember_landed(runs, result.job_id, landing, None)
    return None if report is None else LandingReport(report, conflicts_kept=kept)


async def keep_conflicts(
    client: JobClient, runs: Runs, job_id: str, folder: Path, report: MergeReport
) -> Path | None:
    """Keep both sides of a folder's conflicts, and return where they are.

    Args:
        client: Reads the changes.
        runs: The state folder's runs.
        job_id: The job whose changes were merged.
        folder: The folder.
        report: The report of the merge.
    """
    files: tuple[ConflictingFile, ...] = ()
    if report.conflicts:
        async with client.changes(job_id) as bundle:
            find = RootedFolder(folder).find
            files = await asyncio.to_thread(collect, bundle, report.conflicts, find)
    return await _keep(runs, job_id, files)


async def merge_into(
    client: JobClient, runs: Runs, job_id: str, folder: Path, *, check: bool
) -> MergeReport:
    """Merge a job's changes into a folder, and keep both sides of the conflicts.

    Args:
        client: Reads the changes.
        runs: The state folder's runs.
        job_id: The job.
        folder: The folder.
        check: Only report what would happen.

    Raises:
        InvalidJob: The job has not ended, or changed nothing.
        BlobMissing: The changes have expired.
        WorkspaceUnusable: The folder cannot be written.
    """
    report = await client.apply(job_id, folder, check=check)
    if not check:
        await keep_conflicts(client, runs, job_id, folder, report)
    return report


async def _keep(runs: Runs, job_id: str, files: tuple[ConflictingFile, ...]) -> Path | None:
    with contextlib.suppress(OSError):  # the report names them, and the bundle has the job's side
        return await asyncio.to_thread(runs.conflicts.keep, job_id, files)
    return None


async def _remember_landed(runs: Runs, job_id: str, landing: Landing, tip: str | None) -> None:
    with contextlib.suppress(OSError):  # landing again changes nothing, unless a person went on
        done = landing.model_copy(update={"landed": True, "landed_commit": tip})
        await asyncio.to_thread(runs.remember, job_id, done)
