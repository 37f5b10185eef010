"""The resources: complete texts, which tools only show the beginnings of."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.store.journal import BEGINNING
from fanout.orchestrator.server.event_feed import position
from fanout.orchestrator.server.mcp.doors import Door, ToolContext
from fanout.orchestrator.server.mcp.tools.patches import patch_of

MAX_EVENTS = 100
"""Journal entries of one page: an entry may have some kilobytes."""
MAX_PATCH_BYTES = 1024**2
"""Of a patch that is sent as one resource; `get_patch` returns larger ones in parts."""


class Resources:
    """Journals, results and patches of jobs.

    Args:
        door: Where the caller's jobs are found.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the resources to a server."""
        add = server.resource
        logs = "A job's journal as JSON lines; the last line may name the next page."
        lines = "application/x-ndjson"
        add("fanout://jobs/{job_id}/logs{?after}", name="logs", description=logs, mime_type=lines)(
            self.logs
        )
        add(
            "fanout://jobs/{job_id}/result",
            name="result",
            description="The complete result of a job that has ended.",
            mime_type="application/json",
        )(self.result)
        add(
            "fanout://jobs/{job_id}/patch",
            name="patch",
            description="What a job has changed, for `git apply`.",
            mime_type="text/x-diff",
        )(self.patch)

    async def logs(self, context: ToolContext, job_id: str, after: str = BEGINNING) -> str:
        """Return a page of a job's journal."""
        try:
            position(after)
        except ValueError:
            raise ResourceError("after is the id of a journal entry, such as 0-0.") from None
        async with self._door.open(context) as opened:
            events = await opened.jobs.read_events(job_id, after, MAX_EVENTS)
        told = [event.model_dump_json() for event in events]
        if len(events) == MAX_EVENTS:
            told.append(f'{{"next": "fanout://jobs/{job_id}/logs?after={events[-1].id}"}}')
        return "\n".join(told)

    async def result(self, context: ToolContext, job_id: str) -> str:
        """Return the complete result of a job."""
        async with self._door.open(context) as opened:
            result = await opened.jobs.result(job_id)
        if result is None:
            raise InvalidJob(f"Job {job_id} has not ended: call wait_job until it has.")
        return result.model_dump_json()

    async def patch(self, context: ToolContext, job_id: str) -> str:
        """Return the patch of a job."""
        async with self._door.open(context) as opened:
            content = await patch_of(opened.jobs, job_id)
        if len(content) > MAX_PATCH_BYTES:
            raise InvalidJob(f"The patch has {len(content):,} bytes: use get_patch for its parts.")
        return content.decode(errors="replace")
