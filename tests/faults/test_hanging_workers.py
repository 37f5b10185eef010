"""A worker hangs as a whole: it is seen, replaced, and the jobs of all tenants end.

Its loop, see `test_watchdog.py`; here its threads, and the whole process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.state import JobState
from fanout.workers.health import find_problem
from tests.builders import make_spec
from tests.faults.test_dead_engines import unfit_worker
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation("hangs", shell("true"), DONE),
    conversation("innocent", shell("sleep 5; echo done > done.txt"), DONE),
)


place = place_fixture(*SCRIPT, FANOUT_WORKER__LEASE_SECONDS="4")


@pytest.mark.parametrize("option", ["--supervised", "--restart"])
async def test_a_worker_whose_threads_hang_says_so_and_is_replaced_without_loss(
    place: Installation, tmp_path: Path, option: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    place.start_worker(
        8,
        "tests.faults.hanging_worker",
        forked=False,
        options=(option,),
        FANOUT_TEST_HANGS=str(tmp_path),
    )
    stuck = [make_spec("hangs", tenant=tenant, max_attempts=2) for tenant in ("one", "two", "two")]
    for spec in stuck:
        (tmp_path / spec.id).touch()
    async with place.client() as client:
        await place.ready(client)
        (first,) = await client.workers()
        ids = [await client.submit(spec) for spec in stuck]
        unfit = await unfit_worker(client)
        assert unfit.name == first.name
        assert unfit.draining
        assert "3 of its 4 threads hang" in unfit.unfit
        host = first.name.rpartition("-")[0]
        assert "3 of its 4 threads hang" in await find_problem(place.redis.url, "fanout", host)
        for spec in stuck:
            (tmp_path / spec.id).unlink()
        late = make_spec("innocent", tenant="three", max_attempts=1)
        ids.append(await client.submit(late))
        results = [await client.wait(job_id) for job_id in ids]
        (successor,) = [one for one in await client.workers() if not one.unfit]

    assert [result.state for result in results] == [JobState.SUCCEEDED] * 4
    assert [result.attempts for result in results] == [2, 2, 2, 1]
    assert (successor.name == first.name) == (option == "--restart")


@pytest.mark.parametrize("option", ["--supervised", "--restart"])
async def test_a_worker_that_stays_stopped_is_replaced_or_continued_and_its_jobs_end(
    place: Installation, option: str
) -> None:
    place.start_worker(forked=False, options=(option,))
    async with place.client() as client:
        await place.ready(client)
        (first,) = await client.workers()
        specs = [make_spec("innocent", tenant=tenant) for tenant in ("one", "two")]
        ids = [await client.submit(spec) for spec in specs]
        for job_id in ids:
            await until_event(
                client, job_id, lambda event: event.data.get("state") == JobState.RUNNING
            )
        os.kill(int(first.name.rpartition("-")[2]), signal.SIGSTOP)
        results = [await client.wait(job_id) for job_id in ids]
        names = [one.name for one in await client.workers()]

    assert [result.state for result in results] == [JobState.SUCCEEDED] * 2
    assert (first.name in names) == (option == "--restart")
