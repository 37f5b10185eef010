"""The routes of runs: a goal and a workspace in, a patch or an archive out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from ...cancellation import cancel_and_wait
from ...client.job_pages import JobFilter
from ...jobs.spec import JobSpec
from ...jobs.state import JobRecord
from ...workspace.exchange.cloned import check_source
from ..owned_jobs import OwnedJobs
from ..pages import DEFAULT_LIMIT, MAX_LIMIT, make_cursor, read_cursor
from ..problems import Problem, invalid
from . import jobs as job_routes
from .jobs import IdempotencyKey
from .models import (
    LeftOutFile,
    RunLine,
    RunList,
    RunRequest,
    RunView,
    RunWorkspace,
    StoredSnapshot,
    SubmittedRun,
)
from .requests import Jobs, Shared, request_service
from .webhooks import add_webhooks, check_webhooks

Answer = TypeVar("Answer")

MULTIPART = "multipart/form-data"
MAX_RUN_BYTES = 2 * 1024**2
"""The largest part `run`: a goal and a context of the largest size."""
_CHUNK_BYTES = 1024**2
"""The bytes copied at once of an archive in the body: as much as is in memory anyway."""
_DISCONNECT_SECONDS = 0.5
"""The interval of checks whether a client still waits for a clone."""

router = APIRouter(prefix="/v1", tags=["runs"])

_RUN = {"$ref": "#/components/schemas/RunRequest"}
RUN_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _RUN},
            MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": ["run", "archive"],
                    "properties": {
                        "run": _RUN,
                        "archive": {"type": "string", "format": "binary"},
                    },
                    "additionalProperties": False,
                },
                "encoding": {"run": {"contentType": "application/json"}},
            },
        },
    }
}
ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/gzip": {}}, "description": "A tar.gz."}
}
ARCHIVES = ("application/gzip", "application/x-tar", "application/zip", "application/octet-stream")
ARCHIVE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A tar, tar.gz or zip; its content tells which.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ARCHIVES},
    }
}


@router.post("/runs", status_code=201, openapi_extra=RUN_BODY)
async def start(
    request: Request,
    response: Response,
    jobs: Jobs,
    shared: Shared,
    idempotency_key: IdempotencyKey = None,
) -> SubmittedRun:
    """Start a run: an agent works towards a goal on a copy of a workspace, and others help it.

    With `script` instead of `goal`, a program calls the agents; it is checked before the answer.
    The workspace is a snapshot, a commit of a Git repository, or an archive (tar, tar.gz or zip)
    as the part `archive` of a multipart body whose part `run` is the JSON. A repository is cloned
    before the answer; a client that disconnects meanwhile leaves nothing. With an
    `Idempotency-Key`, a repeated request returns the same run, and clones nothing.
    """
    form = None
    async with AsyncExitStack() as stack:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == MULTIPART:
            await stack.enter_async_context(shared.uploads.receiving(jobs))
            form = await stack.enter_async_context(
                request.form(max_files=1, max_fields=1, max_part_size=MAX_RUN_BYTES)
            )
        wanted, archive = await _wanted(request, form)
        spec = wanted.spec(idempotency_key)
        if archive is not None:
            stored = await shared.uploads.archive(jobs, _chunks(archive))
            spec = spec.model_copy(update={"snapshot": stored.snapshot})
        elif wanted.workspace is not None:
            snapshot = await _snapshot(request, jobs, wanted.workspace, spec)
            spec = spec.model_copy(update={"snapshot": snapshot})
    if wanted.script is not None:
        spec = await jobs.script_job(wanted.script, wanted.inputs, spec)
    subscriptions = shared.notifications.subscriptions
    await check_webhooks([wanted], subscriptions)
    run_id = (await jobs.submit_many([spec]))[0]
    await add_webhooks(jobs, [wanted], [run_id], subscriptions)
    response.headers["Location"] = f"/v1/runs/{run_id}"
    return SubmittedRun(id=run_id, snapshot=spec.snapshot, links=links(run_id))


def links(run_id: str) -> dict[str, str]:
    """Return the paths of a run's parts."""
    run = f"/v1/runs/{run_id}"
    landing = {name: f"{run}/{name}" for name in ("patch", "archive")}
    return {
        "self": run,
        "events": f"/v1/jobs/{run_id}/events",
        "tree": f"/v1/jobs/{run_id}/tree",
    } | landing


async def _wanted(request: Request, form: FormData | None) -> tuple[RunRequest, UploadFile | None]:
    archive = None
    if form is None:
        body = await _json_body(request)
    else:
        given = form.get("run")
        found = form.get("archive")
        body = await given.read() if isinstance(given, UploadFile) else (given or "").encode()
        if not body or not isinstance(found, UploadFile):
            raise Problem(422, "A multipart body has the part `run` (JSON) and the file `archive`.")
        archive = found
    try:
        wanted = RunRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None
    if archive is not None and wanted.workspace is not None:
        raise Problem(422, "The workspace is the archive: leave `workspace` out.")
    return wanted, archive


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"Send application/json, or {MULTIPART} with an archive.")
    return await request.body()


async def _snapshot(
    request: Request, jobs: OwnedJobs, workspace: RunWorkspace, spec: JobSpec
) -> str | None:
    if workspace.git is None:
        return workspace.snapshot
    source = workspace.git.source()
    check_source(source)
    known = await jobs.known_as(spec)
    if known is not None:  # a branch may name another commit by now
        return known.snapshot
    cloning = request_service(request).uploads.repository(jobs, source)
    return (await _while_connected(request, cloning)).snapshot


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(_CHUNK_BYTES):
        yield chunk


async def _while_connected(request: Request, work: Awaitable[Answer]) -> Answer:
    """Return the awaited result; when the client disconnects, the work is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_DISCONNECT_SECONDS)
            if not task.done() and await request.is_disconnected():
                raise ClientDisconnect
        return task.result()
    finally:
        await cancel_and_wait(task)


@router.get("/runs")
async def list_runs(
    jobs: Jobs,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> RunList:
    """List the caller's runs, newest first, with the states of their jobs and what they have used.

    Every job that no other job has submitted is a run.
    """
    page = await jobs.page(JobFilter(roots_only=True), read_cursor(cursor), limit)
    budgets = await jobs.budgets(page.records)
    states = await jobs.tree_states(page.records)
    items = [
        RunLine.of_run(record, budget, counted)
        for record, budget, counted in zip(page.records, budgets, states, strict=True)
    ]
    return RunList(items=items, next_cursor=make_cursor(page.next))


@router.get("/runs/{run_id}")
async def get(
    jobs: Jobs,
    run_id: str,
    wait: Annotated[float, Query(ge=0, le=job_routes.MAX_WAIT_SECONDS)] = 0,
) -> RunView:
    """Return a run, and its result when it has ended.

    `wait` is the number of seconds for which the answer may be delayed until it ends.
    """
    if wait:
        await jobs.wait(run_id, wait)
    record = await _run(jobs, run_id)
    budget = await jobs.budget(run_id)
    return RunView(
        **record.model_dump(),
        result=await job_routes.understood_result(jobs, run_id),
        usage=budget.used,
        budget=budget.if_limited(),
        jobs=dict((await jobs.tree_states([record]))[0]),
        links=links(run_id),
    )


async def _run(jobs: OwnedJobs, run_id: str) -> JobRecord:
    record = await jobs.get(run_id)
    if record.parent_id is not None:
        raise Problem(404, f"Job {run_id} is a part of run {record.root_id}: ask for that one.")
    return record


@router.get("/runs/{run_id}/patch", response_class=Response, responses=job_routes.PATCH)
async def patch(jobs: Jobs, run_id: str) -> Response:
    """Return what a run has changed, as a patch for `git apply`; empty when it changed nothing."""
    await _run(jobs, run_id)
    return await job_routes.patch(jobs, run_id)


@router.get("/runs/{run_id}/archive", response_class=Response, responses=ARCHIVE)
async def archive(jobs: Jobs, run_id: str, *, changed: bool = False) -> StreamingResponse:
    """Return the workspace after a run as a tar.gz; with `changed`, only added and changed files.

    It holds all that the agents wrote: look at what becomes code on your machine by itself, such
    as the settings of an editor, before you use it.
    """
    await _run(jobs, run_id)
    return await job_archive(jobs, run_id, changed=changed)


@router.get("/jobs/{job_id}/archive", response_class=Response, responses=ARCHIVE, tags=["jobs"])
async def job_archive(jobs: Jobs, job_id: str, *, changed: bool = False) -> StreamingResponse:
    """Return the workspace after a job as a tar.gz; with `changed`, only what it has changed."""
    await job_routes.result(jobs, job_id)
    chunks = await jobs.archive(job_id, changed_only=changed)
    name = f'attachment; filename="{job_id}.tar.gz"'
    return StreamingResponse(
        chunks, media_type="application/gzip", headers={"Content-Disposition": name}
    )


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
