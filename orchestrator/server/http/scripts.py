"""The route of scripts: how one stands. They are started as runs (`POST /v1/runs`)."""

from __future__ import annotations

from fastapi import APIRouter

from ...scripts.progress import ScriptProgress, ScriptReader
from ...turns import OwnerTurns
from ..problems import Problem
from .requests import Jobs

PAGE = 1_000
"""Events read at once."""
_turns = OwnerTurns(at_once=4, of_one_owner=2, waiting_of_one_owner=64)
"""The turns of reading whole journals in this process: one of ten thousand calls has megabytes."""

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.get("/jobs/{job_id}/script")
async def progress(jobs: Jobs, job_id: str) -> ScriptProgress:
    """Return how a script stands: phases with counts, what it waits for, its newest log lines."""
    record = await jobs.get(job_id)
    if record.script is None:
        raise Problem(404, f"Job {job_id} runs an agent and no script: read /v1/jobs/{job_id}.")
    reader, after = ScriptReader(), "0-0"
    async with jobs.turn(_turns):
        while page := await jobs.read_events(job_id, after, PAGE):
            for event in page:
                reader.add(event)
            after = page[-1].id
    return reader.progress()
