"""Two installations with one engine: neither touches what belongs to the other."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.jobs.failures import LedgerReplaced
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.workers.sandbox import Command, DockerProvider, LocalProvider, SandboxSpec
from fanout.workers.sandbox.docker import removals
from fanout.workers.sandbox.protocol import nobody
from fanout.workers.upkeep.own_ledger import OwnLedger
from tests.builders import make_spec
from tests.forked import run_module
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import (
    Installer,
    containers_of,
    identity_in,
    installation,
    volumes_of,
)
from tests.waits import eventually

pytestmark = pytest.mark.redis

BEYOND_A_REAPER = 24
"""Seconds: three rounds of a reaper, and the time after which it believes that a worker is dead."""
SCRIPT = [conversation("linger", shell(f"sleep {BEYOND_A_REAPER}; echo done > out.txt"), DONE)]


def spec(**fields: Any) -> SandboxSpec:
    limits = Limits(
        timeout_seconds=60,
        network="none",
        cpus=1,
        memory_bytes=256 * 1024**2,
        pids=64,
        disk_bytes=64 * 1024**2,
    )
    values: dict[str, Any] = {
        "job_id": new_job_id(),
        "attempt": 1,
        "image": "fanout/python",
        "limits": limits,
    }
    return SandboxSpec(**{**values, **fields})


async def no_snapshot(_snapshot: str) -> Path:
    raise AssertionError("the job has none")


async def no_workers() -> list[str]:
    return []


@pytest.fixture
async def make_docker(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[[str, str], DockerProvider]]:
    monkeypatch.setattr(removals, "SILENT_SECONDS", 0.0)
    made: list[DockerProvider] = []

    def make(identity: str, worker: str) -> DockerProvider:
        made.append(
            DockerProvider(
                no_snapshot, installation=identity, worker=worker, living_workers=no_workers
            )
        )
        return made[-1]

    yield make
    for provider in made:
        await provider.reap(nobody)
        await provider.close()


@pytest.mark.representative
@pytest.mark.docker
@pytest.mark.slow
async def test_a_reaper_that_knows_no_job_and_no_worker_spares_another_installation(
    make_docker: Callable[[str, str], DockerProvider],
) -> None:
    ours = make_docker(f"test-{secrets.token_hex(4)}", "worker")
    stranger = make_docker(f"test-{secrets.token_hex(4)}", "worker")

    async with ours.open(spec()) as sandbox:
        await stranger.reap(nobody)
        await stranger.reap(nobody)
        ended = await sandbox.run(Command(argv="echo alive", timeout_seconds=10))

    assert ended.output == b"alive\n"


async def test_two_ledgers_have_two_ids_and_each_keeps_its_own(redis_url: str) -> None:
    other = redis_url.replace("/0", "/1")
    ids = []
    for url in (redis_url, other, redis_url, other):
        async with connect(url) as redis:
            at_once = await asyncio.gather(
                *(Ledger(redis, Keys()).installation() for _ in range(8))
            )
            ids += set(at_once)

    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("loss", ["flushed", "replaced"])
async def test_a_ledger_that_was_lost_is_no_reason_to_remove_anything(
    redis_url: str, loss: str, tmp_path: Path
) -> None:
    async with connect(redis_url) as redis:
        ledger = Ledger(redis, Keys())
        own = OwnLedger(ledger, await ledger.installation())
        provider = await asyncio.to_thread(
            LocalProvider, no_snapshot, root=tmp_path, installation=own.installation
        )
        job_id = new_job_id()
        async with provider.open(spec(job_id=job_id)) as sandbox:
            await redis.flushall()
            if loss == "replaced":
                await ledger.installation()
            with pytest.raises(LedgerReplaced, match="Nothing is removed"):
                await provider.reap(own.is_live)
            with pytest.raises(LedgerReplaced):
                await own.living_workers()
            ended = await sandbox.run(Command(argv="echo alive", timeout_seconds=10))
        assert ended.output == b"alive\n"
        assert (tmp_path / "jobs" / job_id).is_dir()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_worker_whose_redis_loses_its_data_stops_and_removes_nothing(
    install: Installer, tmp_path: Path
) -> None:
    place = await asyncio.to_thread(install, *SCRIPT)
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("linger"))
        sandbox = tmp_path / "state" / "sandboxes" / "jobs" / job_id
        await until_it_exists(sandbox)
        before = place.identity
        await asyncio.to_thread(flush, place.redis.url)
    assert worker.process is not None
    code = await asyncio.to_thread(worker.process.wait, 30)

    assert code == 3
    assert f"instead of {before}" in worker.tail()
    assert sandbox.is_dir()


def flush(url: str) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()


async def until_it_runs(client: JobClient, job_id: str) -> None:
    await eventually(lambda: client.get(job_id), lambda seen: str(seen.state) == "running")


async def until_it_exists(sandbox: Path) -> None:
    """A job runs before it has a sandbox: that opens with the first command."""
    await eventually(lambda: asyncio.to_thread(sandbox.is_dir))


def own_redis(folder: Path, opened: AsyncExitStack) -> Fleet:
    """A worker with a Redis of its own."""
    script = write_script(folder, *SCRIPT)
    place = installation(folder, script=script, FANOUT_SANDBOX__PROVIDER="docker")
    made = opened.enter_context(place)
    made.start_worker()
    return Fleet(made.redis.url, folder / "state")


def embedded(folder: Path, opened: AsyncExitStack) -> Fleet:
    """A worker and a Redis as `fanout up` starts them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FANOUT_")}
    environment = {
        **kept,
        "FANOUT_STATE_DIR": str(folder / "state"),
        "FANOUT_MODEL": f"scripted:{write_script(folder, *SCRIPT)}",
        "FANOUT_SANDBOX__PROVIDER": "docker",
    }
    opened.callback(run_module, "orchestrator", "down", environment=environment)
    started = run_module("fanout", "up", "--no-serve", environment=environment)
    assert started.returncode == 0, started.stderr
    record = StateFolder(folder / "state").read_record()
    assert record is not None
    return Fleet(record.redis_url, folder / "state")


@dataclass(frozen=True)
class Fleet:
    """A Redis and a worker with containers."""

    redis_url: str
    state: Path

    def client(self) -> JobClient:
        settings = load_settings(redis_url=self.redis_url, state_dir=self.state)
        return JobClient(self.redis_url, settings, load_agent_definitions())


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", [(embedded, own_redis), (own_redis, embedded)])
async def test_jobs_of_two_fleets_end_on_their_first_attempt(
    tmp_path: Path, kinds: tuple[Callable[[Path, AsyncExitStack], Fleet], ...]
) -> None:
    async with AsyncExitStack() as opened:
        jobs, identities = [], []
        for kind in kinds:
            folder = tmp_path / kind.__name__
            folder.mkdir()
            fleet = await asyncio.to_thread(kind, folder, opened)
            client = await opened.enter_async_context(await asyncio.to_thread(fleet.client))
            job_id = await client.submit(make_spec("linger"))
            await until_it_runs(client, job_id)
            jobs.append(client.wait(job_id, 90))
            identities.append(await asyncio.to_thread(identity_in, fleet.redis_url))
        results = await asyncio.gather(*jobs)

    assert len(set(identities)) == 2
    assert [outcome(result) for result in results] == [("succeeded", 1, "docker")] * 2
    assert [containers_of(one) + volumes_of(one) for one in identities] == [[], []]


def outcome(result: JobResult) -> tuple[str, int, str | None]:
    return str(result.state), result.attempts, result.sandbox
