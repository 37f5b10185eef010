"""What a run destroys: its own Redis, engine, disk and workers, in one temporary folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import load_settings
from tests.chaos import script
from tests.chaos.engine import IMAGE, NoEngine, PrivateEngine
from tests.chaos.proxy import Proxy
from tests.chaos.small_disk import SmallDisk
from tests.chaos.workers import SupervisedWorker, faketime_library
from tests.faults.releases import Release, earlier_release, listed_releases
from tests.services import REPOSITORY, RedisProcess, identity_in

WORKERS = 3
CONCURRENCY = 6
DISK_BYTES = 256 * 1024**2
DISK_BYTES_A_MINUTE = 8 * 1024**2
"""What the blobs of a minute's jobs take, twice over."""
START_SECONDS = 90.0


class Installation:
    """A whole fanout whose every part can be broken; `async with` starts it and leaves nothing."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder = folder
        self.redis = RedisProcess(folder)
        self.engine: PrivateEngine | None = None
        self.disk: SmallDisk | None = None
        self.earlier: Release | None = None
        """The last release before this one."""
        self.workers: list[SupervisedWorker] = []
        self.left_out: list[str] = []
        """The faults that cannot be had on this machine, and why."""
        self.workspace = folder / "workspace"
        self._minutes = minutes
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @cached_property
    def identity(self) -> str:
        """The id that its ledger keeps, with which everything is labelled that its workers make."""
        return identity_in(self.redis.url)

    @property
    def blobs(self) -> Path:
        return self.folder / "state" / "blobs"

    @property
    def jobs_folder(self) -> Path:
        """Where the files of the jobs are."""
        if self.engine is None:
            return self.folder / "state" / "sandboxes" / "jobs"
        volumes = self.folder / "engine" / "data" / "volumes"
        return volumes / f"fanout-{self.identity}" / "_data" / "jobs"

    def client(self) -> JobClient:
        """A client with its own way to Redis, which is never cut."""
        settings = load_settings(redis_url=self.redis.url, state_dir=self.folder / "state")
        return JobClient(self.redis.url, settings, load_agent_definitions(self.folder / "agents"))

    async def end_workers(self) -> list[int | None]:
        """SIGTERM to all; their exit codes."""
        return list(await asyncio.gather(*(worker.end() for worker in self.workers)))

    async def _start(self) -> None:
        self.workspace.mkdir()
        (self.workspace / "notes.txt").write_text("from the parent\n")
        conversations, _ = script.write(self.folder)
        self._stack.callback(self.redis.stop)
        await asyncio.to_thread(self.redis.start)
        self._mount()
        await self._start_engine()
        if faketime_library() is None:
            self.left_out.append("wrong clock (no libfaketime: Debian's package faketime)")
        try:
            last = listed_releases()[-1]
            self.earlier = await asyncio.to_thread(earlier_release, last, self.folder)
        except LookupError as error:
            self.left_out.append(f"earlier release ({error})")
        for number in range(WORKERS):
            await self._add_worker(number, conversations)
        self._stack.push_async_callback(self.end_workers)
        await self.ready()

    def _mount(self) -> None:
        if os.geteuid() != 0:
            self.left_out.append("disk full (mounting needs root)")
            return
        self.disk = SmallDisk(self.blobs, DISK_BYTES + int(DISK_BYTES_A_MINUTE * self._minutes))
        self.disk.mount()
        self._stack.callback(self.disk.unmount)

    async def _start_engine(self) -> None:
        if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("unshare"):
            self.left_out.append(
                "containers, residents, steward and engine (dockerd and root are needed)"
            )
            return
        self.engine = PrivateEngine(self.folder / "engine")
        self._stack.push_async_callback(self.engine.stop)
        try:
            await self.engine.start()
            await self.engine.load_image()
        except NoEngine as error:
            self.engine = None
            self.left_out.append(f"containers, residents, steward and engine ({error})")

    async def _add_worker(self, number: int, conversations: Path) -> None:
        proxy = Proxy(self.redis.port)
        await proxy.start()
        self._stack.push_async_callback(proxy.stop)
        log = self.folder / f"worker-{number}.log"
        environment = self._environment(proxy.port, conversations)
        worker = SupervisedWorker(proxy, environment, CONCURRENCY, log)
        self.workers.append(worker)
        worker.start()

    def _environment(self, port: int, conversations: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FANOUT_")}
        engine = {"DOCKER_HOST": self.engine.host} if self.engine else {}
        return {
            **kept,
            **engine,
            "PYTHONPATH": str(REPOSITORY),
            "FANOUT_REDIS_URL": f"redis://127.0.0.1:{port}/0",
            "FANOUT_STATE_DIR": str(self.folder / "state"),
            "FANOUT_AGENTS_DIR": str(self.folder / "agents"),
            "FANOUT_MODEL": f"scripted:{conversations}",
            "FANOUT_SANDBOX__PROVIDER": "docker" if self.engine else "local",
            "FANOUT_SANDBOX__IMAGE": IMAGE,
            "ADK_SUPPRESS_EXPERIMENTAL_FEATURE_WARNINGS": "true",
        }

    async def ready(self) -> None:
        """Wait until all workers are registered; one that was killed is started again."""
        async with asyncio.timeout(START_SECONDS), self.client() as client:
            while len(await client.workers()) < WORKERS:  # noqa: ASYNC110 - Redis has no event for it
                await asyncio.sleep(0.2)
