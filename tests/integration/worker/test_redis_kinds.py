"""The kinds of Redis that one setting names: Sentinels, a shared database, a managed one."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.journal import EventType
from tests.adversarial.redis_servers import GuardedRedis, guarded_redis
from tests.builders import make_spec
from tests.integration.scripts import write_script
from tests.integration.worker.conftest import SCRIPT
from tests.integration.worker.test_flower import running_flower
from tests.services import Installation, RedisProcess, free_port
from tests.waits import eventually, until_event

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.blocks_loop("servers are started and stopped in the middle of these tests"),
]

SENTINELS = 3
DOWN_MILLISECONDS = 3000
REPLICATION_MILLISECONDS = 60_000
WITHOUT = ("CONFIG", "ACL", "DEBUG", "SAVE", "BGSAVE", "REPLICAOF", "SHUTDOWN", "MONITOR")
"""Commands that managed ones refuse."""


class Replicated(RedisProcess):
    """A primary, a replica, and three Sentinels; its URL names the Sentinels."""

    def __init__(self, folder: Path) -> None:
        folders = [folder / name for name in ("primary", "replica")]
        for one in folders:
            one.mkdir(parents=True)
        super().__init__(folders[0])
        self._base = folder
        follow = ("--replicaof", f"127.0.0.1 {self.port}", "--repl-diskless-sync-delay", "0")
        self.replica = GuardedRedis(folders[1], *follow)
        self.ports = [free_port() for _ in range(SENTINELS)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"sentinel://{hosts}/2?master_name=ours"
        self._sentinels = ExitStack()

    def start_all(self) -> None:
        self.start()
        self.replica.start()
        for port in self.ports:
            file = self._base / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._base}\n"
                f"sentinel monitor ours 127.0.0.1 {self.port} 2\n"
                f"sentinel down-after-milliseconds ours {DOWN_MILLISECONDS}\n"
                "sentinel failover-timeout ours 10000\n"
            )
            binary = shutil.which("redis-server")
            assert binary
            child = subprocess.Popen([binary, str(file), "--sentinel"], stdout=subprocess.DEVNULL)
            self._sentinels.callback(child.wait, 20)
            self._sentinels.callback(child.terminate)

    def primary_port(self) -> int:
        """The port of the primary, as the Sentinels say; 0 while they do not know all of it."""
        sentinel = redis.Redis(port=self.ports[0], decode_responses=True)
        with sentinel:
            try:
                state = sentinel.sentinel_master("ours")
            except redis.RedisError:
                return 0
        complete = state["num-other-sentinels"] == SENTINELS - 1 and state["num-slaves"] == 1
        return int(state["port"]) if complete else 0

    def replicate(self) -> None:
        """Wait until the replica has all that was written."""
        with redis.Redis(port=self.port) as primary:
            primary.set("replicated", 1)
            assert primary.wait(1, REPLICATION_MILLISECONDS) == 1

    async def until_primary(self, port: int) -> None:
        await eventually(lambda: asyncio.to_thread(self.primary_port), lambda seen: seen == port)

    def stop(self) -> None:
        self._sentinels.close()
        self.replica.stop()
        super().stop()


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Replicated]:
    made = Replicated(tmp_path / "redis")
    made.start_all()
    yield made
    made.stop()


def installed(folder: Path, server: RedisProcess, **environment: str) -> Installation:
    folder.mkdir(exist_ok=True)
    return Installation(folder, server, script=write_script(folder, *SCRIPT), **environment)


async def succeeded(client: JobClient) -> str:
    """Run a job to its end, as soon as the ledger answers; return its id."""
    async with asyncio.timeout(90):
        while True:
            try:
                job_id = await client.submit(make_spec("quick"))
                assert (await client.wait(job_id, 60)).success
            except LedgerUnavailable:
                await asyncio.sleep(0.2)
            else:
                return job_id


async def test_a_worker_a_client_and_flower_follow_the_primary_that_sentinels_name(
    replicated: Replicated, tmp_path: Path
) -> None:
    await replicated.until_primary(replicated.port)
    place = installed(tmp_path / "place", replicated, FANOUT_WORKER__LEASE_SECONDS="30")
    worker = place.start_worker()
    try:
        with running_flower(place) as flower:
            async with place.client() as client:
                await place.ready(client)
                await succeeded(client)
                across = await client.submit(make_spec("turns"))
                await until_event(client, across, EventType.TOOL_CALL)
                await asyncio.to_thread(replicated.replicate)

                replicated.kill()
                await replicated.until_primary(replicated.replica.port)
                await succeeded(client)
                assert (await client.wait(across, 60)).success

                async with asyncio.timeout(60):  # events from before it is there are lost
                    while not await asyncio.to_thread(flower.task, await succeeded(client)):
                        pass
                replicated.start()  # the old primary comes back, and is made a replica
                await succeeded(client)
                assert worker.process is not None
                assert worker.process.poll() is None, worker.tail()
    finally:
        place.stop()


async def test_two_prefixes_in_one_database_never_see_each_other(
    tmp_path: Path, redis_server: RedisProcess, redis_url: str
) -> None:
    places = [
        installed(tmp_path / name, redis_server, FANOUT_REDIS_PREFIX=name)
        for name in ("one", "two")
    ]
    try:
        for place in places:
            place.start_worker()
        first, second = places
        async with first.client() as ours, second.client() as theirs:
            await first.ready(ours)
            await second.ready(theirs)
            with running_flower(first) as flower:
                mine, other = await succeeded(ours), await succeeded(theirs)
                await flower.until(mine, "state", "SUCCESS")
                assert await asyncio.to_thread(flower.task, other) == {}
            for client, job_id in ((ours, mine), (theirs, other)):
                assert [record.id for record in await client.list()] == [job_id]
                assert len(await client.workers()) == 1

            before = [record.worker for record in await theirs.list()]
            first.workers[0].stop()
            waiting = await ours.submit(make_spec("quick"))
            await succeeded(theirs)
            assert (await ours.get(waiting)).state == "queued"
            assert [record.worker for record in await theirs.list()] == before * 2
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            keys = {key.partition(":")[0] for key in client.scan_iter()}
            channels = {name.partition(":")[0] for name in client.pubsub_channels()}
        assert keys == {"one", "two"}
        assert channels <= {"one", "two"}
    finally:
        for place in places:
            place.stop()


async def test_a_managed_redis_without_administration_runs_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    options = [word for name in WITHOUT for word in ("--rename-command", name, "")]
    with guarded_redis(folder, *options, url="valkey://127.0.0.1:{port}/0") as server:
        place = installed(tmp_path / "place", server)
        place.start_worker()
        try:
            async with place.client() as client:
                await place.ready(client)
                await succeeded(client)
        finally:
            place.stop()
