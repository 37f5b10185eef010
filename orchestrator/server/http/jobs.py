"""The routes of jobs: submit, list, look, wait, cancel, retry, message, and what each changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from starlette.responses import StreamingResponse

from ...client.job_pages import JobFilter
from ...jobs.bounds import MAX_KEY_CHARACTERS
from ...jobs.changes import FileChange, SkippedFile
from ...jobs.failures import NotUnderstood
from ...jobs.result import JobResult
from ...jobs.spec import JobSpec
from ...jobs.state import JobRecord, JobState
from ...landing.conflicts import task_conflicts
from ..owned_jobs import OwnedJobs
from ..pages import DEFAULT_LIMIT, MAX_LIMIT, make_cursor, read_cursor
from ..problems import Problem
from .models import (
    MANY,
    MAX_BATCH,
    ONE,
    JobLine,
    JobList,
    JobRequest,
    JobView,
    Message,
    SubmittedJob,
    SubmittedJobs,
    TreeLine,
    TreeList,
)
from .requests import Jobs, Shared
from .webhooks import add_webhooks, check_webhooks

Line = TypeVar("Line", bound=JobLine)

MAX_WAIT_SECONDS = 60
"""The longest wait of one request: proxies close connections without data for a minute."""

router = APIRouter(prefix="/v1", tags=["jobs"])

PATCH: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/x-diff": {}}, "description": "A patch for `git apply`."}
}
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=MAX_KEY_CHARACTERS)
]


OneOrMany = Annotated[
    Annotated[JobRequest, Tag(ONE)]
    | Annotated[list[JobRequest], Field(min_length=1, max_length=MAX_BATCH), Tag(MANY)],
    Discriminator(lambda body: MANY if isinstance(body, list) else ONE),
]
MAX_PATCH_BYTES = 4 * 1024**2
"""The largest patch of one file: some 100,000 lines, more than a person reads; `/patch` has all of
it."""


async def streamed_list(
    kind: type[BaseModel], parts: AsyncGenerator[Sequence[BaseModel], None]
) -> StreamingResponse:
    """Return the JSON of a model whose field `items` is sent in parts, and whose others are unset.

    The first part is read before the response begins, so its failures have their own status.

    Args:
        kind: The model.
        parts: The items.
    """
    first = await anext(parts, None) or []

    async def chunks() -> AsyncIterator[str]:
        head, _, tail = kind(items=[]).model_dump_json().partition("[]")
        yield f"{head}[" + ",".join(one.model_dump_json() for one in first)
        is_empty = not first
        async with aclosing(parts):
            async for part in parts:
                text = ",".join(one.model_dump_json() for one in part)
                yield text if is_empty or not text else f",{text}"
                is_empty = is_empty and not text
        yield f"]{tail}"

    return StreamingResponse(chunks(), media_type="application/json")


def links(job_id: str) -> dict[str, str]:
    """Return the paths of a job's parts."""
    path = f"/v1/jobs/{job_id}"
    return {"self": path} | {name: f"{path}/{name}" for name in ("events", "patch", "tree")}


@router.post("/jobs", status_code=201)
async def submit(
    jobs: Jobs,
    service: Shared,
    response: Response,
    body: Annotated[OneOrMany, Body()],
    idempotency_key: IdempotencyKey = None,
) -> SubmittedJob | SubmittedJobs:
    """Submit a job, or a list of jobs: all of them or none.

    With an `Idempotency-Key`, a repeated request returns the same ids; the items of a list have the
    key with their number, unless they have an `idempotency_key` of their own.
    """
    requests = [body] if isinstance(body, JobRequest) else body
    keys = [idempotency_key] * len(requests)
    if isinstance(body, list):
        keys = [idempotency_key and f"{idempotency_key}#{number}" for number in range(len(body))]
    subscriptions = service.notifications.subscriptions
    await check_webhooks(requests, subscriptions)
    specs = [make_spec(one, key) for one, key in zip(requests, keys, strict=True)]
    ids = await jobs.submit_many(specs)
    await add_webhooks(jobs, requests, ids, subscriptions)
    if isinstance(body, JobRequest):
        job_id = ids[0]
        response.headers["Location"] = f"/v1/jobs/{job_id}"
        return SubmittedJob(id=job_id, links=links(job_id))
    return SubmittedJobs(job_ids=ids)


def make_spec(request: JobRequest, idempotency_key: str | None) -> JobSpec:
    """Return the specification of a requested job; its own key has priority."""
    key = request.idempotency_key or idempotency_key
    return request.spec(**({"idempotency_key": key} if key else {}))


@router.get("/jobs")
async def list_jobs(
    jobs: Jobs,
    *,
    state: Annotated[list[JobState] | None, Query()] = None,
    label: Annotated[list[str] | None, Query(max_length=20)] = None,
    agent: Annotated[str | None, Query(max_length=64)] = None,
    root: Annotated[str | None, Query(max_length=64)] = None,
    roots_only: bool = False,
    q: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> JobList:
    """List the caller's jobs, newest first.

    `state` and `label` (`name=value`) may be given several times; `q` is a part of the id, the
    agent, the description or a label. A page may have fewer jobs than `limit` although more follow:
    go on while there is a `next_cursor`.
    """
    wanted = JobFilter(
        states=set(state) if state else None,
        labels=_labels(label or []),
        agent=agent,
        root_id=root,
        roots_only=roots_only,
        text=q,
    )
    page = await jobs.page(wanted, read_cursor(cursor), limit)
    lines = await job_lines(JobLine, jobs, page.records)
    return JobList(items=lines, next_cursor=make_cursor(page.next))


async def job_lines(kind: type[Line], jobs: OwnedJobs, records: Sequence[JobRecord]) -> list[Line]:
    """Return the lines of jobs, with their usage and the sizes of their trees."""
    budgets, sizes = await jobs.budgets(records), await jobs.tree_sizes(records)
    return [kind.of(*line) for line in zip(records, budgets, sizes, strict=True)]


def _labels(given: list[str]) -> dict[str, str]:
    pairs = [label.partition("=") for label in given]
    if any(not name or not sign for name, sign, _ in pairs):
        raise Problem(422, "A label is given as name=value.")
    return {name: value for name, _, value in pairs}


@router.get("/jobs/{job_id}")
async def get(
    jobs: Jobs,
    job_id: str,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0,
) -> JobView:
    """Return a job, and its result when it has ended.

    `wait` is the number of seconds for which the answer may be delayed until the job ends.
    """
    if wait:
        await jobs.wait(job_id, wait)
    return await _view(jobs, job_id)


async def understood_result(jobs: OwnedJobs, job_id: str) -> JobResult | None:
    """Return a job's result; None also for one that only another release understands."""
    try:
        return await jobs.result(job_id)
    except NotUnderstood:
        return None


async def _view(jobs: Jobs, job_id: str) -> JobView:
    record = await jobs.get(job_id)
    result = await understood_result(jobs, job_id)
    budget = await jobs.budget(job_id)
    return JobView(
        **record.model_dump(),
        result=result,
        usage=budget.used,
        budget=budget.if_limited(),
        links=links(job_id),
    )


@router.get("/jobs/{job_id}/result")
async def result(jobs: Jobs, job_id: str) -> JobResult:
    """Return the result of a job that has ended.

    Changes that are still being collected are awaited for a moment.
    """
    found = await jobs.complete_result(job_id)
    if found is None:
        raise Problem(409, f"Job {job_id} has not ended: wait for it (GET /v1/jobs/ID?wait=30).")
    return found


@router.post("/jobs/{job_id}:cancel", status_code=202)
async def cancel(jobs: Jobs, job_id: str) -> JobView:
    """Cancel a job and those below it; one that has ended does not change."""
    await jobs.cancel(job_id)
    return await _view(jobs, job_id)


@router.post("/jobs/{job_id}:retry", status_code=201)
async def retry(jobs: Jobs, response: Response, job_id: str) -> SubmittedJob:
    """Submit the same job again, and return the new one."""
    new_id = await jobs.retry(job_id)
    response.headers["Location"] = f"/v1/jobs/{new_id}"
    return SubmittedJob(id=new_id, links=links(new_id))


@router.post("/jobs/{job_id}:tell", status_code=204)
async def tell(jobs: Jobs, job_id: str, message: Message) -> None:
    """Send a message to the agent of a job that has not ended."""
    await jobs.send(job_id, message.text)


@router.get("/jobs/{job_id}/children", response_model=JobList)
async def children(jobs: Jobs, job_id: str) -> Response:
    """Return the jobs that a job has submitted, oldest first."""
    parts = jobs.tree_parts(job_id, parent_id=job_id)
    return await streamed_list(JobList, ([JobLine.of(one) for one in part] async for part in parts))


@router.get("/jobs/{job_id}/tree", response_model=TreeList)
async def tree(jobs: Jobs, job_id: str) -> Response:
    """Return all jobs of a job's tree with the phases of their time, parents before children."""
    parts = jobs.tree_parts(job_id)
    lines = (await job_lines(TreeLine, jobs, part) async for part in parts)
    return await streamed_list(TreeList, lines)


@router.get("/jobs/{job_id}/patch", response_class=Response, responses=PATCH)
async def patch(jobs: Jobs, job_id: str) -> Response:
    """Return what a job has changed, as a patch for `git apply`; empty when it changed nothing."""
    found = await result(jobs, job_id)
    content = b""
    if not found.changed_nothing:
        async with jobs.changes(job_id) as bundle:
            content = await asyncio.to_thread(bundle.patch)
    name = f'attachment; filename="{job_id}.patch"'
    return Response(content, media_type="text/x-diff", headers={"Content-Disposition": name})


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
