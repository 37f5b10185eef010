"""Many jobs of one worker that are stopped at once: when each ends, and whose changes are had.

They are cancelled, or late, or their worker is told to stop and another one finishes them. After
those in Docker, the engine must still answer and have nothing left of the jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import docker

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.workers.sandbox.docker.naming import INSTALLATION, JOB
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import Installation, installation

FILES = ("file1.txt", "file2.txt", "file3.txt")
WRITES = conversation(".*", shell(f"for i in {' '.join(FILES)}; do echo $i > $i; done"))
SCRIPT = {**WRITES, "replies": [*WRITES["replies"], shell("sleep 300"), DONE]}
AT_WORK_SECONDS = 120.0
TIMEOUT_SECONDS = 60.0
"""Of jobs that become late: all of them are at work before, also on a busy machine."""
REMOVAL_SECONDS = 30.0
"""After a job's end nothing of it may be left, as promised."""

Way = Literal["cancel", "late", "stop"]


@dataclass(frozen=True)
class Kind:
    """How many jobs are stopped, in which sandboxes, and how."""

    jobs: int
    provider: str
    way: Way = "cancel"


KINDS = {
    "cancel-50": Kind(50, "local"),
    "cancel-200": Kind(200, "local"),
    "late-200": Kind(200, "local", "late"),
    "stop-200": Kind(200, "local", "stop"),
    "cancel-docker": Kind(64, "docker"),
}
TITLES: dict[Way, str] = {
    "cancel": "cancel of {} jobs at once to each one's end ({})",
    "late": "{} jobs at once, from each one's time limit to its end ({})",
    "stop": "SIGTERM of a worker with {} jobs to each one's hand-over ({})",
}


def _ends(name: str) -> Benchmark:
    kind = KINDS[name]
    title = TITLES[kind.way].format(kind.jobs, kind.provider)
    return Benchmark(name=name, title=title, unit="ms", target_p95=2000)


def _changes(name: str) -> Benchmark:
    kind = KINDS[name]
    return Benchmark(
        name=f"{name}-changes",
        title=f"of these {kind.jobs}, whose changes are reported in the end ({kind.provider})",
        unit="%",
        target_least=100,
    )


ROWS = {name: (_ends(name), _changes(name)) for name in KINDS}
ENGINE_ANSWERS = Benchmark(
    name="cancel-docker-engine",
    title="the engine's answer to `info` right after these ends",
    unit="ms",
    target=1000,
)
ENGINE_LEFT = Benchmark(
    name="cancel-docker-left",
    title=f"of these jobs on the engine, {REMOVAL_SECONDS:g} s later",
    unit="left",
    target=0,
)


@dataclass(frozen=True)
class Stopped:
    """How jobs ended that were stopped at once."""

    seconds: list[float]
    """From the request to each one's end, by the journals."""
    complete: int
    """How many reported all that they had changed."""
    engine: tuple[float, int] | None = field(default=None)
    """In Docker: the milliseconds of an answer, and what is left of the jobs."""


async def cancelled_at_once(client: JobClient, jobs: int) -> Stopped:
    """Cancel as many jobs as the worker runs, each with changed files and a running command."""
    ids = await _all_at_work(client, jobs)
    asked_at = time.time()
    await asyncio.gather(*(client.cancel(job_id) for job_id in ids))
    complete = await _complete(client, ids)
    ended = [await _first(client, job_id, lambda event: event.ends_job) for job_id in ids]
    return Stopped([at - asked_at for at in ended], complete)


async def _late_at_once(client: JobClient, jobs: int) -> Stopped:
    ids = await _all_at_work(client, jobs, Limits(timeout_seconds=TIMEOUT_SECONDS))
    complete = await _complete(client, ids)
    began = [await _first(client, job_id, _is_state(JobState.RUNNING)) for job_id in ids]
    ended = [await _first(client, job_id, lambda event: event.ends_job) for job_id in ids]
    late = [at - since - TIMEOUT_SECONDS for since, at in zip(began, ended, strict=True)]
    return Stopped(late, complete)


async def _handed_over_at_once(place: Installation, client: JobClient, jobs: int) -> Stopped:
    """A worker leaves; another one continues its jobs, whose command was interrupted."""
    ids = await _all_at_work(client, jobs)
    asked_at = time.time()
    await asyncio.to_thread(place.workers.pop().send, signal.SIGTERM)
    place.start_worker(jobs, forked=False)
    complete = await _complete(client, ids)
    released = [
        await _first(
            client,
            job_id,
            lambda event: event.at > asked_at and _is_state(JobState.QUEUED)(event),
        )
        for job_id in ids
    ]
    return Stopped([at - asked_at for at in released], complete)


async def _all_at_work(client: JobClient, jobs: int, limits: Limits | None = None) -> list[str]:
    limits = limits or Limits()
    specs = [JobSpec(description="Write.", limits=limits) for _ in range(jobs)]
    ids = await client.submit_many([(spec, None) for spec in specs])
    async with asyncio.timeout(AT_WORK_SECONDS):
        await asyncio.gather(*(_at_work(client, job_id) for job_id in ids))
    return list(ids)


async def _at_work(client: JobClient, job_id: str) -> None:
    """Wait until the files are written and the long command begins."""
    calls = 0
    async for event in client.events(job_id):
        calls += event.type is EventType.TOOL_CALL
        if calls == 2:
            return
    raise AssertionError("a job ended that was to wait")


async def _complete(client: JobClient, ids: Collection[str]) -> int:
    """Wait for the jobs' ends; return how many reported all that they had changed."""
    for job_id in ids:
        await client.wait(job_id, AT_WORK_SECONDS)
    results = [await client.complete_result(job_id) for job_id in ids]
    reported = [[file.path for file in one.files_modified] for one in results if one is not None]
    return reported.count([*FILES])


async def _first(client: JobClient, job_id: str, wanted: Callable[[JournalEvent], bool]) -> float:
    """By the machine's clock, which the journal's is, too."""
    events = [event async for event in client.events(job_id, follow=False)]
    return next(event.at for event in events if wanted(event))


def _is_state(state: JobState) -> Callable[[JournalEvent], bool]:
    return lambda event: event.type is EventType.JOB_STATE and event.data["state"] == state


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Each kind on a worker of its own."""
    for name, kind in KINDS.items():
        ends, changes = ROWS[name]
        if not any(row.startswith(name) for row in wanted):
            continue
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            script = write_script(Path(folder), SCRIPT)
            settings = {"FANOUT_SANDBOX__PROVIDER": kind.provider}
            with installation(Path(folder), script=script, **settings) as place:
                stopped = await _measured(place, kind)
        yield ends, Samples([1000 * seconds for seconds in stopped.seconds])
        yield changes, Samples([100 * stopped.complete / kind.jobs])
        if stopped.engine is not None:
            yield ENGINE_ANSWERS, Samples([stopped.engine[0]])
            yield ENGINE_LEFT, Samples([stopped.engine[1]])


async def _measured(place: Installation, kind: Kind) -> Stopped:
    place.start_worker(kind.jobs, forked=False)
    async with place.client() as client:
        await place.ready(client)
        if kind.way == "late":
            return await _late_at_once(client, kind.jobs)
        if kind.way == "stop":
            return await _handed_over_at_once(place, client, kind.jobs)
        stopped = await cancelled_at_once(client, kind.jobs)
    if kind.provider != "docker":
        return stopped
    engine = await asyncio.to_thread(_engine_after, place.identity)
    return Stopped(stopped.seconds, stopped.complete, engine)


def _engine_after(identity: str) -> tuple[float, int]:
    """Return the milliseconds of an answer, and what is left of the jobs after the time for it."""
    with contextlib.closing(docker.APIClient(timeout=120)) as api:
        asked_at = time.monotonic()
        api.info()
        took = 1000 * (time.monotonic() - asked_at)
        label = {"label": [f"{INSTALLATION}={identity}", JOB]}
        while left := len(api.containers(all=True, filters=label)) + len(
            api.volumes(filters=label)["Volumes"] or []
        ):
            if time.monotonic() > asked_at + REMOVAL_SECONDS:
                break
            time.sleep(0.5)
    return took, left


SECTION = Section(
    benchmarks=(*(row for rows in ROWS.values() for row in rows), ENGINE_ANSWERS, ENGINE_LEFT),
    run=run,
)
