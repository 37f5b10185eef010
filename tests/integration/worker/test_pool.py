"""The Celery pool with real workers.

Terminating, sharing, odd messages, and a Redis that comes late.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter

import pytest
import redis
from celery import Celery

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.queue import RUN_JOB, broker_options
from tests.builders import make_spec
from tests.services import Installation
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

QUEUE = "fanout:queue:fanout"


def celery_of(place: Installation) -> Celery:
    app = Celery("test", broker=place.redis.url, set_as_current=False)
    app.conf.broker_transport_options = broker_options("fanout")
    app.conf.task_default_queue = "fanout"
    return app


async def until_running(client: JobClient, job_ids: list[str]) -> None:
    for job_id in job_ids:
        await until_event(client, job_id, EventType.TOOL_CALL)


async def test_terminating_a_job_in_celery_cancels_it_and_frees_its_slot(
    place: Installation,
) -> None:
    place.start_worker(concurrency=1)
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("long"))
        await until_running(client, [job_id])
        waiting = await client.submit(make_spec("quick"))

        await asyncio.to_thread(celery_of(place).control.revoke, f"{job_id}.1", terminate=True)
        terminated = await client.wait(job_id, 60)

        assert terminated.state is JobState.CANCELLED
        assert (await client.wait(waiting, 60)).success
        await eventually(client.workers, lambda seen: not seen[0].running)


@pytest.mark.slow
async def test_terminating_again_and_again_leaks_no_slot(place: Installation) -> None:
    place.start_worker(concurrency=2)
    async with place.client() as client:
        await place.ready(client)
        control = celery_of(place).control
        for _ in range(4):
            ids = await client.submit_many([(make_spec("long"), None) for _ in range(2)])
            await until_running(client, ids)
            for job_id in ids:
                await asyncio.to_thread(control.revoke, f"{job_id}.1", terminate=True)
            for job_id in ids:
                assert (await client.wait(job_id, 60)).state is JobState.CANCELLED

        ids = await client.submit_many([(make_spec("long"), None) for _ in range(2)])
        await until_running(client, ids)  # both slots work side by side
        for job_id in ids:
            await client.cancel(job_id)


async def test_a_second_worker_takes_what_the_first_has_no_room_for(place: Installation) -> None:
    place.start_worker(concurrency=4)
    async with place.client() as client:
        await place.ready(client)
        ids = await client.submit_many([(make_spec("long"), None) for _ in range(8)])
        await until_running(client, ids[:4])
        assert Counter(record.state for record in await client.list()) == {
            "running": 4,
            "queued": 4,
        }

        place.start_worker(concurrency=4)
        await until_running(client, ids)

        by_worker = Counter(record.worker for record in await client.list())
        assert sorted(by_worker.values()) == [4, 4]
        for job_id in ids:
            await client.cancel(job_id)


@pytest.mark.slow
async def test_messages_that_mean_nothing_change_nothing(place: Installation) -> None:
    worker = place.start_worker(concurrency=1)
    async with place.client() as client:
        await place.ready(client)
        with redis.Redis.from_url(place.redis.url) as broker:
            app = celery_of(place)
            for arguments in (["nobody"], [], ["a", "b"], [{"id": 1}], [None]):
                app.send_task(RUN_JOB, args=arguments, queue="fanout")
            app.send_task("no.such_task", args=["x"], queue="fanout")
            app.send_task(
                RUN_JOB,
                args=[_Mark(str(place.folder / "pickled"))],
                queue="fanout",
                serializer="pickle",
            )
            envelope = {
                "body": "!!",
                "content-type": "application/json",
                "properties": {},
                "headers": {},
            }
            broker.lpush(QUEUE, json.dumps(envelope))

            job_id = await client.submit(make_spec("quick"))
            assert (await client.wait(job_id, 60)).success

            for garbage in ("not even JSON {", "5", "null", "{}", b"\xff\xfe\x00"):
                broker.lpush(QUEUE, garbage)
            job_id = await client.submit(make_spec("quick"))
            assert (await client.wait(job_id, 60)).success

        assert not (place.folder / "pickled").exists()
        assert [
            record.id for record in await client.list(states={JobState.QUEUED, JobState.RUNNING})
        ] == []
        assert worker.process is not None
        assert worker.process.poll() is None


class _Mark:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self._path, "w")


async def test_a_worker_that_is_there_before_its_redis_comes_alive_with_it(
    place: Installation,
) -> None:
    place.redis.kill()
    worker = place.start_worker()
    await eventually(lambda: "Cannot connect" in worker.tail())
    assert worker.process is not None
    assert worker.process.poll() is None, worker.tail()

    place.redis.start()

    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("quick"))
        assert (await client.wait(job_id, 60)).success


def test_pickles_of_the_test_would_be_dangerous(tmp_path: object) -> None:
    path = f"{tmp_path}/made"
    pickle.loads(pickle.dumps(_Mark(path))).close()  # noqa: S301 - the test's own
    with open(path) as made:  # noqa: PTH123 - as above
        assert made.read() == ""
