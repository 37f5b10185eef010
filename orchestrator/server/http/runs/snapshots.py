"""The route that stores workspaces."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from fanout.orchestrator.server.http.models import LeftOutFile, StoredSnapshot
from fanout.orchestrator.server.http.requests import Jobs, Shared

router = APIRouter(prefix="/v1", tags=["runs"])

ARCHIVES = ("application/gzip", "application/x-tar", "application/zip", "application/octet-stream")
ARCHIVE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A tar, tar.gz or zip; its content tells which.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ARCHIVES},
    }
}


@router.post("/snapshots", status_code=201, openapi_extra=ARCHIVE_BODY)
async def store(request: Request, jobs: Jobs, shared: Shared) -> StoredSnapshot:
    """Store the files of an archive as a snapshot that jobs start from.

    Equal files have equal ids. As with a folder, a snapshot has no files that Git ignores (if the
    archive holds the repository) or that seem to be secret; the answer names the latter. It is
    kept as long as jobs are, from its last use on.
    """
    async with shared.uploads.receiving(jobs):
        stored = await shared.uploads.archive(jobs, request.stream())
    return StoredSnapshot(
        snapshot=stored.snapshot,
        files=stored.files,
        bytes=stored.size_bytes,
        left_out=[LeftOutFile(path=one.path, reason=one.reason) for one in stored.left_out[:100]],
        limits=list(stored.limits[:100]),
    )
