"""A Redis without memory refuses new jobs, loses nothing, and those that run go on later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fanout.orchestrator.cli.checks.doctor_checks import redis_checks
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.jobs.failures import LedgerFull
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.adversarial.redis_servers import GuardedRedis, guarded_redis
from tests.builders import make_spec
from tests.integration.cli.conftest import Fanout, clean_environment
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import Installation
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MAX_MEMORY = 8 * 1024**2
TURNS = 4
SCRIPT = (
    conversation("turns", *(shell(f"sleep 1; echo {n} >> turns.txt") for n in range(TURNS)), DONE),
    conversation("asleep", shell("sleep 600"), DONE),
    conversation("quick", DONE),
)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedRedis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with guarded_redis(folder, "--maxmemory", str(MAX_MEMORY), "--appendonly", "yes") as made:
        yield made


@pytest.fixture
def place(guarded: GuardedRedis, tmp_path: Path) -> Iterator[Installation]:
    script = write_script(tmp_path, *SCRIPT)
    made = Installation(tmp_path, guarded, script=script, FANOUT_WORKER__LEASE_SECONDS="4")
    yield made
    made.stop()


async def all_are(client: JobClient, job_ids: list[str], state: JobState) -> bool:
    return {one.state for one in await client.records(job_ids)} == {state}


async def is_idle(client: JobClient) -> bool:
    return not any(worker.running for worker in await client.workers())


def fill(server: GuardedRedis) -> int:
    """Store something else until nothing more fits; return how much.

    At the end the limit is lowered: what Redis needs by itself, as for what clients send it and for
    the append-only file, goes up and down by more than a job needs.
    """
    stored = 0
    with server.admin() as client:
        for size in (100_000, 10_000, 1_000, 100):
            try:
                while True:
                    client.set(f"filler:{stored}", "x" * size)
                    stored += 1
            except redis.exceptions.OutOfMemoryError:
                continue
        memory = client.info("memory")
        # What waits to be written to the append-only file does not count as used for the limit.
        counted = int(memory["used_memory"]) - int(memory["mem_not_counted_for_evict"])
        client.config_set("maxmemory", counted - 2_000_000)
    return stored


def make_room(server: GuardedRedis) -> None:
    with server.admin() as client:
        client.config_set("maxmemory", MAX_MEMORY)
        for key in client.scan_iter("filler:*"):
            client.delete(key)


@pytest.mark.representative
@pytest.mark.slow
async def test_a_redis_that_fills_up_in_the_middle_loses_no_job(
    place: Installation, guarded: GuardedRedis, tmp_path: Path
) -> None:
    worker = place.start_worker()
    fanout = Fanout(tmp_path, clean_environment(tmp_path) | {"FANOUT_REDIS_URL": guarded.url})
    async with place.client() as client:
        await place.ready(client)
        running = await client.submit(make_spec("turns"))
        cancelled = await client.submit(make_spec("asleep"))
        await until_event(client, running, EventType.TOOL_RESULT)
        assert await asyncio.to_thread(fill, guarded) > 10

        listed = await asyncio.to_thread(fanout, "ps")
        assert "Redis holds " in listed.err
        assert "raise its maxmemory" in listed.err
        refused = await asyncio.to_thread(fanout, "submit", "quick")
        assert refused.code == 3
        assert refused.out == ""
        assert refused.err.startswith("Redis has no memory left, so nothing new is stored")
        assert refused.err.count("\n") == 1

        await asyncio.sleep(9)  # more than two leases
        record = await client.get(running)
        assert (record.state, record.attempt) == (JobState.RUNNING, 1), "it waits, and is not lost"
        assert len(await client.workers()) == 1
        await client.cancel(cancelled)
        assert (await client.wait(cancelled, 60)).state is JobState.CANCELLED
        assert worker.process
        assert worker.process.poll() is None

        await asyncio.to_thread(make_room, guarded)
        result = await client.wait(running, 60)
        assert (result.success, result.attempts) == (True, 1), result.error
        async with client.changes(running) as bundle:
            (changed,) = bundle.changes.files
            assert changed.after is not None
            content = await asyncio.to_thread(bundle.content, changed.after)
            assert content == b"0\n1\n2\n3\n", "nothing was done twice"
        later = await asyncio.to_thread(fanout, "submit", "quick", "--wait")
        assert later.code == 0, later.err
        assert len(await client.ids()) == 3, "the refused one was not stored"


@pytest.mark.slow
async def test_a_result_is_stored_although_redis_is_full(
    place: Installation, guarded: GuardedRedis
) -> None:
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("asleep", limits={"timeout_seconds": 10}))
        await until_event(client, job_id, EventType.TOOL_CALL)
        await asyncio.to_thread(fill, guarded)
        with pytest.raises(LedgerFull):
            await client.submit(make_spec("quick"))
        record = await eventually(
            lambda: client.get(job_id), lambda record: record.state.is_terminal
        )

        assert record.state is JobState.TIMED_OUT  # what it held has made a little room since


@pytest.mark.slow
async def test_a_worker_that_starts_on_a_full_redis_runs_jobs_when_there_is_room(
    place: Installation, guarded: GuardedRedis
) -> None:
    async with place.client() as client:
        job_id = await client.submit(make_spec("quick"))
        await asyncio.to_thread(fill, guarded)
        place.start_worker()
        await asyncio.sleep(5)
        assert (await client.get(job_id)).state is JobState.QUEUED

        await asyncio.to_thread(make_room, guarded)
        assert (await client.wait(job_id, 60)).success


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ({}, [("warn", "redis memory")]),
        ({"maxmemory": 100, "used_memory": 50}, [("ok", "redis memory")]),
        ({"maxmemory": 100, "used_memory": 90}, [("warn", "redis memory")]),
        (
            {"maxmemory": 100, "maxmemory_policy": "allkeys-lru"},
            [("fail", "redis eviction"), ("ok", "redis memory")],
        ),
        (
            {"maxmemory_policy": "volatile-ttl"},
            [("warn", "redis eviction"), ("warn", "redis memory")],
        ),
    ],
)
def test_doctor_says_what_a_full_redis_would_do(info: Any, found: Any) -> None:
    settings = load_settings(redis_url="redis://h/0")
    checks = redis_checks(settings, {"redis_version": "7.2", "aof_enabled": 1, **info})

    assert [(check.status, check.name) for check in checks][2:] == found


@pytest.mark.slow
async def test_running_jobs_are_given_back_when_redis_is_full_and_resumed_when_there_is_room(
    place: Installation, guarded: GuardedRedis, tmp_path: Path
) -> None:
    place.start_worker(concurrency=10)
    async with place.client() as client:
        await place.ready(client)
        running = [await client.submit(make_spec("turns")) for _ in range(10)]
        async with asyncio.timeout(60):
            for job_id in running:
                await until_event(client, job_id, EventType.TOOL_CALL)
        await asyncio.to_thread(fill, guarded)

        await eventually(lambda: all_are(client, running, JobState.QUEUED))
        records = await client.list()
        assert {one.waiting_for for one in records} == {
            "memory in Redis: it was given back when none was left"
        }
        assert {one.attempt for one in records} == {0}, "no attempt is used up"
        await eventually(lambda: is_idle(client))

        await asyncio.to_thread(make_room, guarded)
        for job_id in running:
            result = await client.wait(job_id, 60)
            assert (result.success, result.attempts) == (True, 1), result.error
            events = [event async for event in client.events(job_id)]
            ids = [tuple(map(int, event.id.split("-"))) for event in events]
            assert ids == sorted(ids)
            assert [event.type for event in events].count("tool.result") == TURNS, "none twice"


@pytest.mark.slow
async def test_jobs_for_which_redis_has_no_memory_end_in_time_with_one_sentence(
    place: Installation, guarded: GuardedRedis, tmp_path: Path
) -> None:
    place.start_worker(concurrency=10, FANOUT_STORAGE__FULL_WAIT_SECONDS="2")
    async with place.client() as client:
        await place.ready(client)
        running = [await client.submit(make_spec("turns")) for _ in range(10)]
        async with asyncio.timeout(60):
            for job_id in running:
                await until_event(client, job_id, EventType.TOOL_CALL)
        await asyncio.to_thread(fill, guarded)

        for job_id in running:
            result = await client.wait(job_id, 60)
            assert result.error is not None
            assert result.error.type == "LedgerFull"
            assert result.error.message.startswith("Redis has no memory left, so the job could")
            assert result.error.message.count(".") == 1
        await eventually(lambda: is_idle(client))
        left = tmp_path / "state" / "sandboxes" / "jobs"
        await eventually(lambda: asyncio.to_thread(lambda: not list(left.iterdir())))


def test_doctor_names_the_memory_of_the_machine_where_redis_has_no_limit() -> None:
    info = {"redis_version": "7.2", "aof_enabled": 1, "used_memory": 1024**2}
    checks = redis_checks(
        load_settings(redis_url="redis://h/0"), info | {"total_system_memory": 4 * 1024**3}
    )

    found = next(check for check in checks if check.name == "redis memory")
    assert "no maxmemory (its machine has 4096 MiB" in found.found
