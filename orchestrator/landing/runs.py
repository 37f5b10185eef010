"""Runs: root jobs that a person started for a folder, and the landing of what they changed there.

Which folder a run is for is known on the machine of that folder only: in `runs/` of the state
folder, a file for each run. So a second terminal, or a command a week later, can follow a run and
land it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.client import JobClient
from orchestrator.jobs.failures import InvalidJob
from orchestrator.jobs.result import JobResult
from orchestrator.private_files import create_private_file, make_private_folder
from orchestrator.workspace.merge import MergeReport

KEPT_RUNS = 1000
"""Of one state folder: the newest ones; a file has some hundred bytes."""


class Landing(BaseModel):
    """Where the changes of a run are merged when it has succeeded."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    workspace: Path
    """The folder that the run started from."""
    lands: bool = True
    """False: they are left to a later `fanout apply`."""
    include_executable_config: bool = False
    """Whether a person has said that what becomes code on the host is merged too."""
    continues: str | None = None
    """The run that this one continues, whose changes land before its own."""
    landed: bool = False
    """Whether all that it changed has been merged. It is not merged again: the person may have
    gone on from there."""


class Runs:
    """The runs that were started on this machine.

    Args:
        state_dir: The state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "runs"

    def remember(self, job_id: str, landing: Landing) -> None:
        """Store where a run lands, and whether it has.

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

    def landing(self, job_id: str) -> Landing | None:
        """Return where a run lands; None for a job that was not started by `fanout run` here."""
        with contextlib.suppress(OSError, ValidationError):
            return Landing.model_validate_json((self._folder / f"{job_id}.json").read_bytes())
        return None


async def land(
    client: JobClient, runs: Runs, result: JobResult, landing: Landing
) -> MergeReport | None:
    """Merge what a run changed into its folder, after what the runs that it continues changed.

    Args:
        client: Reads the changes.
        runs: Where it is stored which runs have landed.
        result: The result of the run's root job.
        landing: Where they land.

    Returns:
        None when nothing lands: the run failed or changed nothing, or a person wants to do it, or
        all has landed before.

    Raises:
        InvalidJob: The folder does not exist any more.
        BlobMissing: The changes have expired.
        WorkspaceUnusable: The folder cannot be written.
    """
    if not (landing.lands and result.success) or landing.landed:
        return None
    if not await asyncio.to_thread(landing.workspace.is_dir):
        raise InvalidJob(
            f"The run's folder {landing.workspace} does not exist any more; to land it elsewhere: "
            f"fanout apply {result.job_id} --into DIR"
        )
    for job_id, before in await asyncio.to_thread(_not_landed, runs, landing):
        earlier = await client.result(job_id)
        if earlier is not None and earlier.changes:
            await _merge(client, runs, earlier, before)
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


async def _merge(
    client: JobClient, runs: Runs, result: JobResult, landing: Landing
) -> MergeReport | None:
    report = await client.merge(
        result,
        landing.workspace,
        include_executable_config=landing.include_executable_config,
    )
    if report is None or report.complete:
        with contextlib.suppress(OSError):  # merging again changes nothing, unless a person went on
            done = landing.model_copy(update={"landed": True})
            await asyncio.to_thread(runs.remember, result.job_id, done)
    return report
