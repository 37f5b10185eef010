"""A neighbour whose memory cannot be read for now does not keep other jobs from being stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.deep_agent.backends.processes import Launch, run
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.adversarial.stuck_processes import stuck_processes
from tests.builders import make_spec
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import Installation, installation
from tests.waits import until_event

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (conversation("asleep", shell("sleep 600"), DONE),)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path, script=write_script(tmp_path, *SCRIPT)) as made:
        yield made


async def test_jobs_end_and_so_does_their_worker(place: Installation, tmp_path: Path) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        late, cancelled = [
            await client.submit(make_spec("asleep", limits={"timeout_seconds": seconds}))
            for seconds in (10, 600)
        ]
        for job_id in (late, cancelled):
            await until_event(client, job_id, EventType.SANDBOX_READY)
        with stuck_processes(tmp_path, 8):
            await client.cancel(cancelled)
            assert (await client.wait(cancelled, 60)).state is JobState.CANCELLED
            assert (await client.wait(late, 60)).state is JobState.TIMED_OUT
            await asyncio.to_thread(worker.stop)
    assert "grace time is over" not in worker.tail()


async def test_a_command_of_the_parent_ends_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    has_begun = asyncio.Event()

    async def note(_: bytes) -> None:
        has_begun.set()

    argv = ["sh", "-c", "echo begun; sleep 600"]
    launch = Launch(argv=argv, env={"PATH": "/bin"}, timeout_seconds=600, max_output_bytes=100)
    with stuck_processes(tmp_path, 1):
        running = asyncio.create_task(run(launch, note))
        await has_begun.wait()
        running.cancel()
        await asyncio.wait([running], timeout=60)
        assert running.cancelled()
