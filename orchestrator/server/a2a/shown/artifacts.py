"""What a job has made, as artifacts of its task: answer, structured output, patch, files."""

from __future__ import annotations

import asyncio
import mimetypes

from a2a.types import Artifact, Part

from fanout.orchestrator.jobs.changes import ChangeBundle, MalformedBundle, PatchFailed
from fanout.orchestrator.jobs.failures import BlobMissing
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.server.a2a.shown.parts import data_part, file_part, link_part
from fanout.orchestrator.server.owned_jobs import OwnedJobs

PATCH_TYPE = "text/x-diff"
BINARY_TYPE = "application/octet-stream"
MAX_PATCH_BYTES = 512 * 1024
"""Of a patch inside of a task; of a larger one the task has the address."""
MAX_FILES_BYTES = 512 * 1024
"""Of the contents of changed files inside of a task; all of them are in the patch."""


async def artifacts_of(jobs: OwnedJobs, result: JobResult, base_url: str) -> list[Artifact]:
    """Return the artifacts of a job that has ended, always with the same ids.

    Args:
        jobs: The caller's jobs.
        result: The job's result.
        base_url: The origin of the service, for what is too large for a task.
    """
    found = []
    if result.summary:
        found.append(_artifact("answer", "The agent's answer.", Part(text=result.summary)))
    if result.output is not None:
        part = data_part(result.output)
        found.append(_artifact("output", "The answer as the job's schema has it.", part))
    if result.changes is not None:
        found += await _changes(jobs, result, base_url)
    return found


def _artifact(name: str, description: str, *parts: Part) -> Artifact:
    return Artifact(artifact_id=name, name=name, description=description, parts=parts)


async def _changes(jobs: OwnedJobs, result: JobResult, base_url: str) -> list[Artifact]:
    listed = [one.model_dump(mode="json", exclude_defaults=True) for one in result.files_modified]
    files = [data_part({"files": listed, "omitted": result.files_omitted})]
    name = f"{result.job_id}.patch"
    patch = link_part(f"{base_url}/v1/jobs/{result.job_id}/patch", name, PATCH_TYPE)
    try:
        async with jobs.changes(result.job_id) as bundle:
            content = await asyncio.to_thread(bundle.patch)
            files += await asyncio.to_thread(_contents, bundle)
            if len(content) <= MAX_PATCH_BYTES:
                patch = file_part(content, name, PATCH_TYPE)
    except (BlobMissing, MalformedBundle, PatchFailed):  # the list of the result is what is left
        return [_artifact("files", "The changed files.", *files)]
    return [
        _artifact("patch", "The changes, for `git apply`.", patch),
        _artifact("files", "The changed files, and the contents of the small ones.", *files),
    ]


def _contents(bundle: ChangeBundle) -> list[Part]:
    """Return the contents of changed files, the smaller ones first, as far as they fit."""
    room = MAX_FILES_BYTES
    found = {}
    for file in sorted(bundle.changes.files, key=lambda one: one.size_bytes):
        if file.after is None or file.after.kind != "file":
            continue
        room -= file.after.size_bytes
        if room < 0:
            break
        media_type = mimetypes.guess_type(file.path)[0] or BINARY_TYPE
        found[file.path] = file_part(bundle.content(file.after), file.path, media_type)
    return [part for _, part in sorted(found.items())]
