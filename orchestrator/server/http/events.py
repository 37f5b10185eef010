"""The routes of journals: server-sent events of one job, of many, and pages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Response
from sse_starlette import EventSourceResponse

from ...cancellation import cancel_and_wait
from ...configuration.api_settings import Scope
from ...jobs.store.journal import BEGINNING, JournalEvent
from ..owned_jobs import OwnedJobs
from ..problems import Problem
from .jobs import job_lines
from .models import EventList, TreeLine
from .requests import Jobs, Shared

PING_SECONDS = 15
"""The time between two comments on a silent stream: proxies close a stream without data."""
ENDING_SECONDS = 1.0
"""The time between the end of a server and that of a stream whose reader reads nothing."""
RETRY_MS = 1_000
"""The time after which a browser connects again."""
MAX_EVENTS = 1_000
"""The most events of one page of a journal."""

router = APIRouter(prefix="/v1", tags=["events"])

After = Annotated[str | None, Query(pattern=r"^[0-9]{1,20}(-[0-9]{1,20})?$")]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=50)]
Before = Annotated[str | None, Query(pattern=r"^(end|[0-9]{1,19}(-[0-9]{1,19})?)$")]
_EVENT_ID = re.compile(r"([0-9]{1,19})-([0-9]{1,19})", re.ASCII)
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The events."}
}


def stream(events: AsyncIterator[bytes]) -> EventSourceResponse:
    """Return a response of events that a browser and a proxy keep open.

    It ends as a complete response when the server ends: readers then continue at another one.
    """
    ending = anyio.Event()
    return EventSourceResponse(
        _until(ending, events),
        ping=PING_SECONDS,
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
        shutdown_event=ending,
        shutdown_grace_period=ENDING_SECONDS,
    )


async def _until(ending: anyio.Event, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield events until the server ends."""
    ended = asyncio.ensure_future(ending.wait())
    coming: asyncio.Future[bytes] | None = None
    try:
        while not ended.done():
            coming = asyncio.ensure_future(anext(events))
            await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                yield coming.result()
    except StopAsyncIteration:
        return
    finally:
        for task in (coming, ended):
            if task is not None:
                await cancel_and_wait(task)


@router.get("/jobs/{job_id}/events", response_class=Response, responses=EVENTS)
async def events(
    jobs: Jobs,
    shared: Shared,
    job_id: str,
    after: After = None,
    last_event_id: LastEventId = None,
) -> EventSourceResponse:
    """Stream a job's journal from its beginning, and new entries until the job's end.

    `id` is the entry's id: with `Last-Event-ID` or `after`, the stream goes on behind it, on any
    server. `event` is the entry's type and `data` the entry as JSON.
    """
    await jobs.get(job_id)
    return stream(_begun(shared.feed.frames(job_id, _position(last_event_id or after))))


async def _begun(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield f"retry: {RETRY_MS}\n\n".encode()
    async for one in frames:
        yield one


def _position(given: str | None) -> str:
    if given is None:
        return BEGINNING
    milliseconds, _, number = given.partition("-")
    if (
        not milliseconds.isascii()
        or not milliseconds.isdecimal()
        or not (number or "0").isdecimal()
    ):
        raise Problem(400, "Last-Event-ID is the id of an event of this journal.")
    return f"{milliseconds[:20]}-{number[:20] or 0}"


@router.get("/jobs/{job_id}/logs")
async def logs(
    jobs: Jobs,
    job_id: str,
    after: After = None,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
) -> EventList:
    """Return a page of a job's journal, oldest entry first.

    It begins behind the entry `after`. With `before` instead, it ends before that entry, and
    `before=end` is the page of the newest entries.
    """
    if before is None:
        found = await jobs.read_events(job_id, _position(after), limit)
        following = found[-1].id if len(found) == limit else None
        return EventList(items=found, next_after=following)
    if after is not None:
        raise Problem(422, "Give after or before, not both.")
    end = None if before == "end" else _position(before)
    found = await jobs.read_events_before(job_id, end, limit)
    return EventList(items=found, next_before=found[0].id if len(found) == limit else None)


@router.get("/jobs/{job_id}/logs/{event_id}")
async def log_entry(jobs: Jobs, job_id: str, event_id: str) -> JournalEvent:
    """Return one entry of a job's journal with the agent's event complete, however large it is."""
    await jobs.get(job_id)
    given = _EVENT_ID.fullmatch(event_id)
    found = None
    if given is not None:
        behind = f"{given[1]}-{int(given[2]) + 1}"
        found = next(iter(await jobs.read_events_before(job_id, behind, 1)), None)
    if found is None or found.id != event_id:
        raise Problem(404, f"The journal of job {job_id} has no such entry.")
    whole = await jobs.session_event(found)
    if whole is None:
        return found
    return found.model_copy(update={"data": {**found.data, "event": json.loads(whole)}})


@router.get("/changes", response_class=Response, responses=EVENTS)
async def changes(jobs: Jobs, shared: Shared) -> EventSourceResponse:
    """Stream the caller's jobs whenever they change, as `job` events like the items of a tree.

    An event `missed` says that changes may have been missed: read the list again.
    """
    jobs.caller.require(Scope.READ)
    return stream(_changed(jobs, shared.changed.batches()))


async def _changed(jobs: OwnedJobs, batches: AsyncIterator[frozenset[str]]) -> AsyncIterator[bytes]:
    async for ids in batches:
        if not ids:
            yield b"event: missed\ndata: {}\n\n"
            continue
        records = await jobs.owned_records(ids)
        for line in await job_lines(TreeLine, jobs, records):
            yield f"event: job\ndata: {line.model_dump_json()}\n\n".encode()
