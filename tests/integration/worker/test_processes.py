"""One command that starts several worker processes, which share its jobs."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from tests.builders import make_spec
from tests.integration.worker.test_pool import until_running
from tests.services import Installation, WorkerProcess
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]


def pid_of(worker: WorkerInfo) -> int:
    return int(worker.name.rpartition("-")[2])


def lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def until(client: JobClient, condition: Callable[[set[int]], bool]) -> set[int]:
    """Wait until the ids of the registered processes are as wanted, and return them."""

    async def pids() -> set[int]:
        return {pid_of(one) for one in await client.workers()}

    return set(await eventually(pids, condition))


async def ended(pids: set[int]) -> None:
    await eventually(lambda: not any(map(lives, pids)))


def started(place: Installation) -> WorkerProcess:
    return place.start_worker(concurrency=5, options=("--processes", "2"))


async def test_the_processes_share_the_jobs_and_end_together(place: Installation) -> None:
    worker = started(place)
    async with place.client() as client:
        pids = await until(client, lambda found: len(found) == 2)
        assert sorted(one.concurrency for one in await client.workers()) == [2, 3]

        ids = await client.submit_many([(make_spec("endless"), None) for _ in range(5)])
        await until_running(client, ids)
        assert sorted(one.running for one in await client.workers()) <= [2, 3]

        assert worker.process is not None
        assert worker.process.pid not in pids
        worker.send(signal.SIGTERM)
        assert worker.process.poll() == 0
        assert not any(map(lives, pids))
        assert await client.workers() == []


async def test_a_killed_process_is_started_again_and_its_job_goes_on(place: Installation) -> None:
    started(place)
    async with place.client() as client:
        before = await until(client, lambda found: len(found) == 2)
        job_id = await client.submit(make_spec("turns"))
        await until_running(client, [job_id])
        killed = int(((await client.get(job_id)).worker or "").rpartition("-")[2])
        os.kill(killed, signal.SIGKILL)

        after = await until(client, lambda found: len(found - {killed}) == 2)
        assert before - {killed} <= after
        living = [one for one in await client.workers() if pid_of(one) != killed]
        assert sorted(one.concurrency for one in living) == [2, 3]
        assert (await client.wait(job_id, 60)).success


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
async def test_what_looks_after_the_processes_takes_no_more_memory_than_a_small_program(
    place: Installation,
) -> None:
    worker = started(place)
    async with place.client() as client:
        pids = await until(client, lambda found: len(found) == 2)

        assert worker.process is not None
        assert resident_mib(worker.process.pid) < 20
        assert all(resident_mib(pid) > 60 for pid in pids)


async def test_when_the_first_process_is_killed_the_others_hand_their_jobs_over(
    place: Installation,
) -> None:
    worker = started(place)
    async with place.client() as client:
        pids = await until(client, lambda found: len(found) == 2)
        job_id = await client.submit(make_spec("turns"))
        await until_running(client, [job_id])

        worker.kill()
        await ended(pids)
        place.start_worker()
        assert (await client.wait(job_id, 60)).success
        assert (await client.get(job_id)).attempt == 1


async def test_a_setting_that_no_process_can_start_with_ends_all_with_its_exit_code(
    place: Installation,
) -> None:
    worker = place.start_worker(
        concurrency=5, options=("--processes", "2"), FANOUT_AGENTS_DIR="/nowhere/agents"
    )
    assert worker.process is not None
    assert await asyncio.to_thread(worker.process.wait, 60) == 2
