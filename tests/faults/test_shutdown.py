"""A worker is told to end: its jobs are requeued and lose no attempt, or finish with `--drain`."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import WAITS, Installation, WorkerProcess
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

JOBS = 20


SCRIPT = (conversation("waits", shell(WAITS), DONE),)


place = place_fixture(*SCRIPT)


async def test_twenty_jobs_go_on_elsewhere_and_lose_no_attempt(
    place: Installation,
) -> None:
    stopped = place.start_worker(concurrency=JOBS)
    async with place.client() as client:
        await place.ready(client)
        ids = await client.submit_many([(make_spec("waits"), None) for _ in range(JOBS)])
        for job_id in ids:
            await until_event(client, job_id, EventType.TOOL_CALL)
        await asyncio.to_thread(place.start_worker, JOBS)
        await place.ready(client, 2)
        await asyncio.to_thread(stopped.send, signal.SIGTERM)
        results = [await client.wait(job_id) for job_id in ids]
        journals = [[state async for state in _states(client, job_id)] for job_id in ids]
    assert stopped.process is not None
    assert stopped.process.returncode == 0
    assert [(result.success, result.attempts) for result in results] == [(True, 1)] * JOBS
    handed_over = ["queued", "running", "queued", "running", "succeeded"]
    assert journals == [handed_over] * JOBS


async def test_a_draining_worker_finishes_its_jobs_and_takes_no_more(place: Installation) -> None:
    drained = place.start_worker(FANOUT_WORKER__DRAIN="true")
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("waits"))
        await until_event(client, job_id, EventType.TOOL_CALL)
        ending = asyncio.create_task(asyncio.to_thread(drained.send, signal.SIGTERM))
        await _until_draining(client)
        later = await client.submit(make_spec("waits"))
        await place.let_end()
        await ending
        result = await client.wait(job_id)
        assert (result.success, result.attempts) == (True, 1)
        assert drained.process is not None
        assert drained.process.returncode == 0
        assert [state async for state in _states(client, job_id)] == [
            "queued",
            "running",
            "succeeded",
        ]
        assert [state async for state in _states(client, later)] == ["queued"]


@pytest.mark.slow
async def test_a_worker_that_is_told_many_times_at_once_hands_its_jobs_over(
    place: Installation,
) -> None:
    """A parent's kernel tells it once for each thread; handlers interrupt each other then."""
    told = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("waits"))
        await until_event(client, job_id, EventType.TOOL_CALL)
        assert told.process is not None
        for _ in range(400):
            if told.process.poll() is None:
                _tell(told)
            time.sleep(0.0002)  # noqa: ASYNC251 - other tasks would make pauses of it
        assert await asyncio.to_thread(told.process.wait, 60) == 0
        assert [state async for state in _states(client, job_id)] == ["queued", "running", "queued"]


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([signal.SIGTERM, signal.SIGTERM], id="asked-again"),
        pytest.param([signal.SIGQUIT], id="quit"),
        pytest.param([signal.SIGINT, signal.SIGINT], id="interrupted-twice"),
        pytest.param([signal.SIGHUP, signal.SIGHUP], id="terminal-closed"),
        pytest.param([signal.SIGTERM, signal.SIGQUIT], id="quit-while-it-drains"),
    ],
)
async def test_no_signal_that_ends_a_draining_worker_ends_its_jobs(
    place: Installation, numbers: list[signal.Signals]
) -> None:
    """Celery's own answers to these cancel what runs, or wait for it without an end."""
    told = place.start_worker(FANOUT_WORKER__DRAIN="true")
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("waits"))
        await until_event(client, job_id, EventType.TOOL_CALL)
        for number in numbers[:-1]:
            _tell(told, number)
            await _until_draining(client)
        _tell(told, numbers[-1])
        assert told.process is not None
        assert await asyncio.to_thread(told.process.wait, 60) == 0
        assert [state async for state in _states(client, job_id)] == ["queued", "running", "queued"]


def _tell(worker: WorkerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    assert worker.process is not None
    worker.process.send_signal(number)


async def _until_draining(client: JobClient) -> None:
    await eventually(client.workers, lambda seen: any(worker.draining for worker in seen))


async def _states(client: JobClient, job_id: str):
    async for event in client.events(job_id, follow=False):
        if event.type is EventType.JOB_STATE:
            yield event.data["state"]
