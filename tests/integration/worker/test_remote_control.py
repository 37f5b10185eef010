"""Celery's own commands (`celery -A fanout.workers.celery_app …`) at a real worker.

They do what they say or are refused with a sentence, and no job is lost by them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.integration.worker.test_pool import until_running
from tests.services import Installation
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]


async def celery(place: Installation, *arguments: str) -> dict[str, Any]:
    """Run Celery's command line; return the answer of the only worker, or {} without one."""
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-m", "celery", "-A", "fanout.workers.celery_app", *arguments],
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    answer = json.loads(ended.stdout) if ended.stdout.startswith(("{", "[")) else None
    assert answer, ended.stdout + ended.stderr
    (reply,) = answer.values() if isinstance(answer, dict) else answer[0].values()
    return dict(reply) if isinstance(reply, dict) else {"reply": reply}


def only(place: Installation) -> tuple[str, ...]:
    """The options that ask the first worker only: Celery then waits for no other answers."""
    process = place.workers[0].process
    assert process is not None
    node = f"fanout-{process.pid}@{socket.gethostname()}"
    return ("--json", "--timeout", "30", "--destination", node)


async def control(place: Installation, *command: str) -> dict[str, Any]:
    return await celery(place, "control", *only(place), *command)


async def inspect(place: Installation, *command: str) -> dict[str, Any]:
    return await celery(place, "inspect", *only(place), *command)


async def size(place: Installation) -> int:
    return int((await inspect(place, "stats"))["pool"]["max-concurrency"])


async def states(client: JobClient, job_ids: list[str]) -> list[JobState]:
    return [(await client.get(job_id)).state for job_id in job_ids]


async def until(client: JobClient, concurrency: int) -> None:
    """Wait until the ledger knows the worker's new capacity."""
    await eventually(
        client.workers, lambda seen: [one.concurrency for one in seen] == [concurrency]
    )


async def test_the_pool_grows_and_shrinks_and_the_running_jobs_do_not_notice(
    place: Installation,
) -> None:
    place.start_worker(concurrency=1)
    async with place.client() as client:
        await place.ready(client)
        ids = await client.submit_many([(make_spec("endless"), None) for _ in range(3)])
        await until_running(client, ids[:1])
        assert (await inspect(place, "ping")) == {"ok": "pong"}
        assert (await inspect(place, "registered"))["reply"] == ["fanout.run_job"]

        assert "at most 3" in (await control(place, "pool_grow", "2"))["ok"]
        await until_running(client, ids)
        assert await size(place) == 3
        await until(client, 3)
        (active,) = [len((await inspect(place, "active"))["reply"])]
        assert active == 3

        assert "at most 1" in (await control(place, "pool_shrink", "2"))["ok"]
        await until(client, 1)
        assert await size(place) == 1
        assert "1 to 1000" in (await control(place, "pool_shrink", "5"))["error"]
        assert "--autoscale" in (await control(place, "autoscale", "9", "1"))["error"]
        limit = await control(place, "time_limit", "fanout.run_job", "1", "2")
        assert "FANOUT_LIMITS__TIMEOUT_SECONDS" in limit["error"]
        rate = await control(place, "rate_limit", "fanout.run_job", "1/m")
        assert "FANOUT_MODELS" in rate["error"]
        assert await states(client, ids) == [JobState.RUNNING] * 3
        assert [record.attempt for record in await client.list()] == [1, 1, 1]

        waiting = await client.submit(make_spec("quick"))
        for job_id in ids[:2]:
            await client.cancel(job_id)
            assert (await client.wait(job_id, 60)).state is JobState.CANCELLED
        assert (await client.get(waiting)).state is JobState.QUEUED
        await client.cancel(ids[2])
        assert (await client.wait(waiting, 60)).success


async def test_a_worker_that_scales_itself_takes_as_many_as_there_are(place: Installation) -> None:
    place.start_worker(options=("--autoscale", "3,1"), AUTOSCALE_KEEPALIVE="1")
    async with place.client() as client:
        await place.ready(client)
        assert await size(place) == 1
        await until(client, 3)

        ids = await client.submit_many([(make_spec("endless"), None) for _ in range(4)])
        await until_running(client, ids[:3])
        assert await size(place) == 3
        assert "autoscale" in (await control(place, "pool_grow"))["error"]
        assert "min <= max" in (await control(place, "autoscale", "2", "3"))["error"]

        assert (await control(place, "autoscale", "4", "2"))["ok"] == "autoscale now max=4 min=2"
        await until_running(client, ids)
        for job_id in ids:
            await client.cancel(job_id)
        await eventually(lambda: size(place), lambda seen: seen == 2)


@pytest.mark.representative
async def test_a_shutdown_hands_the_jobs_over_and_a_paused_worker_takes_none(
    place: Installation,
) -> None:
    first = place.start_worker(concurrency=2)
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("endless"))
        await until_running(client, [job_id])

        told = await control(place, "cancel_consumer", "fanout")
        assert "takes no more jobs" in told["ok"]
        assert (
            "does not take jobs from x" in (await control(place, "cancel_consumer", "x"))["error"]
        )
        waiting = await client.submit(make_spec("quick"))
        await asyncio.sleep(1)
        assert await states(client, [job_id, waiting]) == [JobState.RUNNING, JobState.QUEUED]
        assert (await control(place, "add_consumer", "fanout"))["ok"] == "takes jobs from fanout"
        assert (await client.wait(waiting, 60)).success

        told = await control(place, "shutdown")
        assert told["ok"] == "hands its 1 jobs over, ends within 10 s"
        assert first.process is not None
        assert await asyncio.to_thread(first.process.wait, 60) == 0
        assert (await client.get(job_id)).state is JobState.QUEUED

        place.start_worker(concurrency=2)
        await eventually(lambda: client.get(job_id), lambda seen: seen.state is JobState.RUNNING)
        record = await client.get(job_id)
        assert record.worker != ""
        await client.cancel(job_id)


async def test_revoking_is_cancelling_and_purging_loses_nothing(place: Installation) -> None:
    place.start_worker(concurrency=1)
    async with place.client() as client:
        await place.ready(client)
        running, doomed, kept = await client.submit_many(
            [(make_spec(name), None) for name in ("endless", "quick", "quick")]
        )
        await until_running(client, [running])

        refused = (await control(place, "revoke", f"{running}.1"))["ok"]
        assert "terminate was not given" in refused
        assert (await control(place, "revoke", doomed))["ok"] == f"{doomed}: cancelled"
        assert (await client.wait(doomed, 60)).state is JobState.CANCELLED
        assert "cancelled" in (await control(place, "revoke", doomed))["ok"]
        assert "no such job" in (await control(place, "revoke", "nobody"))["ok"]
        assert await states(client, [running, kept]) == [JobState.RUNNING, JobState.QUEUED]

        ended = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                "-P",
                "-m",
                "celery",
                "-A",
                "fanout.workers.celery_app",
                "purge",
                "-f",
            ],
            env=place.environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == 0
        assert (await control(place, "terminate", "TERM", running))["ok"].endswith("terminated")
        assert (await client.wait(running, 60)).state is JobState.CANCELLED
        assert (await client.wait(kept, 60)).success


async def test_a_worker_obeys_nobody_where_the_setting_says_so(place: Installation) -> None:
    place.start_worker(concurrency=1, FANOUT_WORKER__REMOTE_CONTROL="false")
    async with place.client() as client:
        await place.ready(client)
        for command in (
            ["shutdown"],
            ["pool_grow"],
            ["revoke", "x"],
            ["cancel_consumer", "fanout"],
        ):
            told = await control(place, *command)
            assert "FANOUT_WORKER__REMOTE_CONTROL" in told["error"], told
        assert (await inspect(place, "ping")) == {"ok": "pong"}
        assert (await client.run(make_spec("quick"))).success
