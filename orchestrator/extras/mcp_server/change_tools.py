"""The tools that return the changes of jobs, and the resources: the complete texts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from ...jobs.failures import InvalidJob
from ...jobs.store.journal import BEGINNING
from ...server.event_feed import position
from ...server.owned_jobs import OwnedJobs
from ...workspace.merge_report import MergeReport
from . import texts
from .doors import DoorTools, ToolContext
from .reports import Applied, Patch

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MERGES = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
DEFAULT_PATCH_BYTES = 20_000
"""About five thousand tokens: most patches are smaller."""
MAX_PATCH_BYTES = 200_000
"""The largest part: about fifty thousand tokens."""
MAX_FILES = 50
"""The most merged files that are named."""

MaxBytes = Annotated[int, Field(ge=1_000, le=MAX_PATCH_BYTES)]
Offset = Annotated[int, Field(ge=0)]
Into = Annotated[str, Field(description="The folder, relative to the project.")]
Check = Annotated[bool, Field(description="Change nothing; only report what would happen.")]
MAX_EVENTS = 100
"""The most journal entries of one page: an entry may have some kilobytes."""
MAX_RESOURCE_PATCH_BYTES = 1024**2
"""The largest patch that is sent as one resource; `get_patch` returns larger ones in parts."""


class ChangeTools(DoorTools):
    """Returns patches, and merges changes into folders of this machine."""

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server; only a local one can merge."""
        server.add_tool(self.get_patch, None, "Get a patch", texts.GET_PATCH, READS)
        if self._door.is_local:
            server.add_tool(self.apply_patch, None, "Merge changes", texts.APPLY_PATCH, MERGES)

    async def get_patch(
        self,
        context: ToolContext,
        job_id: str,
        max_bytes: MaxBytes = DEFAULT_PATCH_BYTES,
        offset: Offset = 0,
    ) -> Patch:
        """Return a part of a job's patch."""
        async with self._door.open(context) as opened:
            content = await read_patch(opened.jobs, job_id)
        part = _whole_lines(
            content[offset : offset + max_bytes], is_last=len(content) <= offset + max_bytes
        )
        end = offset + len(part)
        text = part.decode(errors="replace")
        return Patch(
            job_id=job_id,
            patch=text,
            total_bytes=len(content),
            next_offset=end if end < len(content) else None,
            is_exact=text.encode() == part,
        )

    async def apply_patch(
        self, context: ToolContext, job_id: str, into: Into = ".", check: Check = False
    ) -> Applied:
        """Merge a job's changes into a folder."""
        async with self._door.open(context) as opened:
            if opened.folders is None:
                raise ToolError("This server cannot reach your folders: use get_patch.")
            result = await opened.jobs.complete_result(job_id)
            if result is not None and result.changed_nothing:
                return _applied(job_id, MergeReport())
            return _applied(job_id, await opened.folders.apply(job_id, into, check=check))


async def read_patch(jobs: OwnedJobs, job_id: str) -> bytes:
    """Return a job's patch; empty when it changed nothing.

    Raises:
        InvalidJob: The job has not ended.
        UnknownJob: There is no such job.
        BlobMissing: The changes have expired.
    """
    result = await jobs.complete_result(job_id)
    if result is None:
        raise InvalidJob(f"Job {job_id} has not ended: call wait_job until it has.")
    if result.changed_nothing:
        return b""
    async with jobs.changes(job_id) as bundle:
        return await asyncio.to_thread(bundle.patch)


def _whole_lines(part: bytes, *, is_last: bool) -> bytes:
    """Return the complete lines of a part, so that no character is cut; all of a longer line."""
    end = part.rfind(b"\n") + 1
    return part if is_last or end == 0 else part[:end]


def _applied(job_id: str, report: MergeReport) -> Applied:
    merged = [f"{file.how} {file.change} {file.path}" for file in report.applied]
    steps = []
    if report.conflicts:
        steps.append(f"fanout diff {job_id} --conflicts shows your user both sides.")
    if report.held_back:
        steps.append(
            f"Your user may merge what is held back: fanout apply {job_id} "
            "--include-executable-config."
        )
    return Applied(
        complete=report.complete,
        merged=merged[:MAX_FILES],
        merged_omitted=len(merged[MAX_FILES:]),
        conflicts=_reasons(report.conflicts),
        held_back=_reasons(report.held_back),
        failed=_reasons((*report.refused, *report.failed, *report.skipped)),
        next=" ".join(steps) or "Nothing is left to do.",
    )


def _reasons(files: Iterable[Any]) -> list[str]:
    return [f"{file.path}: {file.reason}" for file in files]


class Resources(DoorTools):
    """Journals, results and patches of jobs."""

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
        entries = [event.model_dump_json() for event in events]
        if len(events) == MAX_EVENTS:
            entries.append(f'{{"next": "fanout://jobs/{job_id}/logs?after={events[-1].id}"}}')
        return "\n".join(entries)

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
            content = await read_patch(opened.jobs, job_id)
        if len(content) > MAX_RESOURCE_PATCH_BYTES:
            raise InvalidJob(f"The patch has {len(content):,} bytes: use get_patch for its parts.")
        return content.decode(errors="replace")
