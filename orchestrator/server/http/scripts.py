"""The route of scripts: how one stands. They are started as runs (`POST /v1/runs`)."""

from __future__ import annotations

from fastapi import APIRouter

from ...scripts.progress import ScriptProgress
from ..problems import Problem
from .requests import Jobs

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.get("/jobs/{job_id}/script")
async def progress(jobs: Jobs, job_id: str) -> ScriptProgress:
    """Return how a script stands: phases with counts, what it waits for, its newest log lines."""
    record = await jobs.get(job_id)
    if record.script is None:
        raise Problem(404, f"Job {job_id} runs an agent and no script: read /v1/jobs/{job_id}.")
    return await jobs.script_progress(job_id)
