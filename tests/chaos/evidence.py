"""What a run left: journals, results and files of jobs, the ledger's keys, the engine's things."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import JournalEvent
from tests.chaos.installation import Installation
from tests.chaos.workload import Submitted

MAX_READ_BYTES = 1024 * 1024


@dataclass
class JobEvidence:
    """All that is known of one job."""

    record: JobRecord
    events: list[JournalEvent]
    result: JobResult | None = None
    first_result: JobResult | None = None
    """The one that its parent was given first, if it waited."""
    kind: str = ""
    """Its kind in the plan; empty for a child."""
    cancelled_in: str | None = None
    files: dict[str, str] | None = None
    """The text of each file that it changed; None when the result names no changes."""

    @property
    def id(self) -> str:
        return self.record.id


@dataclass
class Leftovers:
    """What still stands when all jobs have ended."""

    keys: dict[str, str] = field(default_factory=dict)
    """Key of the ledger -> what it holds."""
    containers: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


async def of_jobs(client: JobClient, submitted: Mapping[str, Submitted]) -> dict[str, JobEvidence]:
    """The evidence of all jobs that were acknowledged, and of their children."""
    found: dict[str, JobEvidence] = {}
    for root, job in submitted.items():
        for record in await client.tree(root):
            evidence = await _of_job(client, record)
            if record.id == root:
                evidence.kind, evidence.first_result = job.planned.kind, job.result
                evidence.cancelled_in = job.cancelled_in
            found[record.id] = evidence
    return found


async def _of_job(client: JobClient, record: JobRecord) -> JobEvidence:
    events = [event async for event in client.events(record.id, follow=False)]
    result = await client.result(record.id)
    evidence = JobEvidence(record, events, result)
    if result is not None and result.changes is not None:
        try:
            evidence.files = await _files(client, record.id)
        except JobFailure as failure:
            evidence.files = {"unreadable": str(failure)}
    return evidence


async def _files(client: JobClient, job_id: str) -> dict[str, str]:
    async with client.changes(job_id) as bundle:
        return {
            file.path: (await asyncio.to_thread(bundle.content, file.after)).decode(
                errors="replace"
            )
            for file in bundle.changes.files
            if file.after is not None
        }


async def leftovers(place: Installation) -> Leftovers:
    """What stands in the ledger, on the engine and in the folder of the jobs' files, now."""
    found = Leftovers(keys=await _keys(place.redis.url))
    if place.engine is not None:
        containers, volumes = await asyncio.gather(
            asyncio.to_thread(place.engine.containers, place.identity),
            asyncio.to_thread(place.engine.volumes, place.identity),
        )
        found.containers = [
            _named(container["Labels"], container["State"])
            for container in containers
            if await asyncio.to_thread(place.engine.is_there, container["Id"])
        ]
        found.volumes = [_named(volume["Labels"], volume["Name"]) for volume in volumes]
    found.folders = await asyncio.to_thread(_names_in, place.jobs_folder)
    return found


def _named(labels: Mapping[str, str], what: str) -> str:
    """A thing of the engine in words: role, job if it is one's, and what else tells it."""
    job = labels.get("fanout.job")
    return " ".join(
        word for word in (labels.get("fanout.role", "?"), job and f"of {job}", f"({what})") if word
    )


def _names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def _keys(url: str) -> dict[str, str]:
    """Every key that does not go by itself, with what it holds."""
    sizes = {
        "string": "strlen",
        "list": "llen",
        "set": "scard",
        "zset": "zcard",
        "hash": "hlen",
        "stream": "xlen",
    }
    held: dict[str, str] = {}
    redis: Any = Redis.from_url(url, decode_responses=True)
    try:
        async for key in redis.scan_iter(count=1000):
            if await redis.ttl(key) == -1:
                kind = await redis.type(key)
                held[key] = f"{kind} of {await getattr(redis, sizes[kind])(key)}"
    finally:
        await redis.aclose()
    return held
