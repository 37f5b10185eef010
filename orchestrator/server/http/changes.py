"""The routes of what a job has changed: its files, the patch of one of them, and conflicts."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from fanout.orchestrator.jobs.changes import FileChange, SkippedFile
from fanout.orchestrator.landing.conflicts import task_conflicts
from fanout.orchestrator.server.http.jobs import result
from fanout.orchestrator.server.http.requests import Jobs
from fanout.orchestrator.server.problems import Problem

MAX_PATCH_BYTES = 4 * 1024**2
"""Of one file's patch: some 100,000 lines, more than a person reads; `/patch` has all of it."""

router = APIRouter(prefix="/v1", tags=["jobs"])


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChangedFiles(_Answer):
    """What a job has changed."""

    items: list[FileChange]
    skipped: list[SkippedFile] = []
    """Changed, but not among the changes."""
    ignored: list[str] = []
    """Changed, but excluded by the workspace's ignore rules."""


class FilePatch(_Answer):
    """What a job has changed in one file."""

    path: str
    patch: str
    truncated: bool = False
    """Whether it is cut; `/v1/jobs/{id}/patch` is complete."""


class ShownConflict(_Answer):
    """A change of a task that could not be merged into its parent's files."""

    job_id: str
    """The task."""
    path: str
    """Empty: all that it changed."""
    reason: str
    diff: str
    """From the parent's side to the task's, at most 200 lines."""


class ConflictList(_Answer):
    """What of a job's tasks could not be merged into its files."""

    items: list[ShownConflict]


@router.get("/jobs/{job_id}/files")
async def files(jobs: Jobs, job_id: str) -> ChangedFiles:
    """Return which files a job has changed; none of one that changed nothing."""
    found = await result(jobs, job_id)
    if found.changed_nothing:
        return ChangedFiles(items=list(found.files_modified))
    async with jobs.changes(job_id) as bundle:
        changes = bundle.changes
        summary = await asyncio.to_thread(changes.summary)
        return ChangedFiles(
            items=list(summary), skipped=list(changes.skipped), ignored=list(changes.ignored)
        )


@router.get("/jobs/{job_id}/files/patch")
async def file_patch(
    jobs: Jobs, job_id: str, path: Annotated[str, Query(min_length=1, max_length=4096)]
) -> FilePatch:
    """Return what a job has changed in one file, as a patch that is cut when it is very long."""
    async with jobs.changes(job_id) as bundle:
        if not any(file.path == path for file in bundle.changes.files):
            raise Problem(404, "This job has not changed this path.")
        part = await asyncio.to_thread(bundle.patch, path)
    text = part[:MAX_PATCH_BYTES].decode("utf-8", "replace")
    return FilePatch(path=path, patch=text, truncated=len(part) > MAX_PATCH_BYTES)


@router.get("/jobs/{job_id}/conflicts")
async def conflicts(jobs: Jobs, job_id: str) -> ConflictList:
    """Return both sides of what of a job's tasks could not be merged into its files."""
    await jobs.get(job_id)
    found = await task_conflicts(jobs, job_id)
    return ConflictList(
        items=[
            ShownConflict(job_id=one.job_id, path=one.path, reason=one.reason, diff=one.diff)
            for one in found
        ]
    )
