"""Many jobs of one worker that are cancelled at once: when each ends, and whose changes are had."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import Installation, installation

FILES = ("file1.txt", "file2.txt", "file3.txt")
WRITES = conversation(".*", shell(f"for i in {' '.join(FILES)}; do echo $i > $i; done"))
SCRIPT = {**WRITES, "replies": [*WRITES["replies"], shell("sleep 300"), DONE]}
KINDS = {"cancel-50": (50, "local"), "cancel-200": (200, "local"), "cancel-docker": (16, "docker")}
AT_WORK_SECONDS = 120.0


def _ends(name: str) -> Benchmark:
    jobs, provider = KINDS[name]
    return Benchmark(
        name=name,
        title=f"cancel of {jobs} jobs at once to each one's end ({provider})",
        unit="ms",
        target_p95=2000,
    )


def _changes(name: str) -> Benchmark:
    jobs, provider = KINDS[name]
    return Benchmark(
        name=f"{name}-changes",
        title=f"of these {jobs}, whose changes are reported in the end ({provider})",
        unit="%",
        target_least=100,
    )


ROWS = {name: (_ends(name), _changes(name)) for name in KINDS}


@dataclass(frozen=True)
class Stopped:
    """How jobs ended that were cancelled at once."""

    seconds: list[float]
    """From the request to each one's end, by the journals."""
    complete: int
    """How many reported all that they had changed."""


async def cancelled_at_once(client: JobClient, jobs: int) -> Stopped:
    """Cancel as many jobs as the worker runs, each with changed files and a running command."""
    ids = await client.submit_many([(JobSpec(description="Write."), None) for _ in range(jobs)])
    async with asyncio.timeout(AT_WORK_SECONDS):
        await asyncio.gather(*(_at_work(client, job_id) for job_id in ids))
    asked_at = time.time()
    await asyncio.gather(*(client.cancel(job_id) for job_id in ids))
    for job_id in ids:
        await client.wait(job_id, AT_WORK_SECONDS)
    results = [await client.complete_result(job_id) for job_id in ids]
    ended = [await _ended_at(client, job_id) for job_id in ids]
    reported = [[file.path for file in one.files_modified] for one in results if one is not None]
    return Stopped([at - asked_at for at in ended], reported.count([*FILES]))


async def _at_work(client: JobClient, job_id: str) -> None:
    """Wait until the files are written and the long command begins."""
    calls = 0
    async for event in client.events(job_id):
        calls += event.type is EventType.TOOL_CALL
        if calls == 2:
            return
    raise AssertionError("a job ended that was to wait")


async def _ended_at(client: JobClient, job_id: str) -> float:
    """By the machine's clock, which the journal's is, too."""
    events = [event async for event in client.events(job_id, follow=False)]
    return next(event.at for event in events if event.ends_job)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Each kind on a worker of its own."""
    for name, (jobs, provider) in KINDS.items():
        ends, changes = ROWS[name]
        if ends.name not in wanted and changes.name not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            script = write_script(Path(folder), SCRIPT)
            settings = {"FANOUT_SANDBOX__PROVIDER": provider}
            with installation(Path(folder), script=script, **settings) as place:
                stopped = await _measured(place, jobs)
        yield ends, Samples([1000 * seconds for seconds in stopped.seconds])
        yield changes, Samples([100 * stopped.complete / jobs])


async def _measured(place: Installation, jobs: int) -> Stopped:
    place.start_worker(jobs, forked=False)
    async with place.client() as client:
        await place.ready(client)
        return await cancelled_at_once(client, jobs)


SECTION = Section(benchmarks=tuple(row for rows in ROWS.values() for row in rows), run=run)
