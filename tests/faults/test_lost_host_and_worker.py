"""Host and worker are lost together, in the middle of jobs of thirty steps.

Another host finishes them.

What a job had done before its newest checkpoint is not done again, and its files are those of an
undisturbed run.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.stepping import STEPS, Holds, SteppingModel, stepping_model
from tests.faults.test_resume import UNDISTURBED, docker, files, until_held
from tests.services import Installation, Installer, WorkerProcess, containers_of, volumes_of

pytestmark = [
    pytest.mark.redis,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="a host's name needs a namespace of its own"),
]

LOST: Holds = {("job-1", 3): "command", ("job-2", 16): "command", ("job-3", 29): "command"}
"""Where each job is when its host is lost: its command has an effect that no checkpoint has."""
CHECKPOINT_SECONDS = "0.2"


@dataclass
class Host(WorkerProcess):
    """A worker under a host name of its own."""

    name: str = "host"

    def command(self) -> list[str]:
        begin = f"hostname {self.name}; exec {shlex.join(super().command())}"
        return ["unshare", "--uts", "sh", "-c", begin]


@pytest.fixture
def model() -> Iterator[SteppingModel]:
    with stepping_model(dict(LOST)) as serving:
        yield serving


@pytest.fixture
def place(install: Installer, model: SteppingModel, provider: str) -> Installation:
    settings = {
        "FANOUT_SANDBOX__PROVIDER": provider,
        "FANOUT_WORKER__LEASE_SECONDS": "6",
        "FANOUT_WORKER__CHECKPOINT_SECONDS": CHECKPOINT_SECONDS,
        "FANOUT_BLOBS_URL": (install.folder / "state" / "blobs").as_uri(),
        **model.environment(),
    }
    return install(**settings)


def start(place: Installation, name: str) -> Host:
    environment = {**place.environment, "FANOUT_STATE_DIR": str(place.folder / name)}
    host = Host(environment, place.folder / f"{name}.log", len(LOST) + 1, name=name)
    host.start()
    place.workers.append(host)
    return host


async def lose(place: Installation, host: Host, provider: str) -> None:
    """Worker, disk, containers and their volumes are gone."""
    host.kill()
    place.workers.remove(host)
    await asyncio.to_thread(shutil.rmtree, place.folder / host.name, ignore_errors=True)
    if provider == "docker":
        while left := await asyncio.to_thread(containers_of, place.identity):
            with suppress(subprocess.CalledProcessError):  # it goes by itself just now
                await docker("rm", "-f", *left)
        await docker("volume", "rm", "-f", *await asyncio.to_thread(volumes_of, place.identity))


async def steps_kept(client: JobClient, job_id: str) -> int:
    """How many commands had ended before the checkpoint from which the job went on.

    0 when it began anew.
    """
    events = [event async for event in client.events(job_id, follow=False)]
    ready = [event for event in events if event.type is EventType.SANDBOX_READY]
    assert len(ready) == 2
    mark = ready[1].data.get("checkpoint")
    assert ready[1].data["resumed"] == (mark is not None)
    ids = [event.id for event in events]
    before = events[: ids.index(str(mark))] if mark else []
    return sum(event.type is EventType.TOOL_RESULT for event in before)


async def test_another_host_finishes_what_a_lost_one_began(
    place: Installation, model: SteppingModel, provider: str
) -> None:
    async with place.client() as client:
        first = start(place, "first")
        await place.ready(client)
        names = [UNDISTURBED, *(name for name, _ in LOST)]
        jobs = [(make_spec(f"Do {name}."), None) for name in names]
        ids = dict(zip(names, await client.submit_many(jobs), strict=True))
        await until_held(client, place, model, ids, LOST)
        expected = await files(client, (await client.wait(ids[UNDISTURBED], 60)).job_id)
        await lose(place, first, provider)
        model.holds.clear()
        start(place, "second")

        results = {name: await client.wait(job_id, 90) for name, job_id in ids.items()}

        assert [result.error for result in results.values() if not result.success] == []
        for name, lost_at in LOST:
            kept = await steps_kept(client, ids[name])
            again = [step for step in range(1, STEPS + 2) if model.completed[name, step] == 2]
            assert again == [*range(kept + 1, lost_at + 1)], (name, lost_at, kept)
            assert sum(
                model.completed[name, step] for step in range(1, STEPS + 2)
            ) == STEPS + 1 + len(again)
            assert results[name].usage.model_calls == STEPS + 1 + len(again), "what was paid counts"
            assert await files(client, ids[name]) == expected, name
        assert await steps_kept(client, ids["job-3"]) > 0, "no checkpoint was taken"
