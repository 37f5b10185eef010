"""What the sandbox benchmarks share.

A provider of their own on the engine, and nothing left of it after.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import docker

from fanout.orchestrator.jobs.spec import GIB, BlobId, Limits, StartFiles, new_job_id
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.docker.naming import INSTALLATION
from fanout.workers.sandbox.docker.provider import DEFAULT_IMAGE, DockerProvider
from fanout.workers.sandbox.protocol import Sandbox, SandboxSpec
from tests.benchmarks.measure import milliseconds
from tests.benchmarks.plain_container import PlainContainer, remove_plain, sdk, start_plain

LIMITS = Limits(
    timeout_seconds=600, cpus=1, memory_bytes=GIB, pids=256, disk_bytes=GIB, network="none"
)
"""Those of an installation that sets none, for a sandbox and for its floor."""

EMPTY = StartFiles()


@dataclass(frozen=True)
class Bench:
    """A provider, the bare SDK, and a folder for files."""

    provider: DockerProvider
    api: docker.APIClient
    installation: str
    folder: Path
    blobs: BlobStore

    async def snapshot(self, tree: Path) -> BlobId:
        """The snapshot of a folder, as a parent makes it."""
        return await Workspace(tree).snapshot(self.blobs)

    @contextlib.asynccontextmanager
    async def sandbox(self, start: StartFiles = EMPTY) -> AsyncIterator[Sandbox]:
        """A sandbox whose files go when it is closed."""
        job = new_job_id()
        spec = SandboxSpec(
            job_id=job, attempt=1, image=DEFAULT_IMAGE, limits=LIMITS, **start.update()
        )
        try:
            async with self.provider.open(spec) as sandbox:
                yield sandbox
        finally:
            await self.provider.discard(job)

    async def opened(
        self, snapshot: BlobId | None, use: Callable[[Sandbox], Awaitable[object]]
    ) -> float:
        """Milliseconds from asking for a sandbox to the end of its first use.

        Closing it is not in it.
        """
        opening = self.sandbox(StartFiles(snapshot))

        async def open_and_use() -> None:
            await use(await opening.__aenter__())

        try:
            took = await milliseconds(open_and_use())
        except BaseException:
            await opening.__aexit__(*sys.exc_info())
            raise
        await opening.__aexit__(None, None, None)
        return took

    def start_plain(self) -> PlainContainer:
        """A container without anything of ours."""
        return start_plain(self.api, DEFAULT_IMAGE, LIMITS, f"{INSTALLATION}={self.installation}")

    @contextlib.asynccontextmanager
    async def plain(self) -> AsyncIterator[PlainContainer]:
        """A container without anything of ours, removed at the end."""
        container = await asyncio.to_thread(self.start_plain)
        try:
            yield container
        finally:
            await asyncio.to_thread(container.remove)


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """A provider of an installation that nobody else has.

    Raises:
        EngineUnavailable: no engine answers.
        ImageMissing: it lacks an image.
    """
    installation = f"bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix=installation) as name:
        folder = Path(name)
        blobs = BlobStore((folder / "blobs").as_uri())
        provider = DockerProvider(blobs.fetch, installation=installation, worker="bench")
        try:
            await provider.probe()
            with sdk() as api:
                try:
                    yield Bench(provider, api, installation, folder, blobs)
                finally:
                    await provider.close()
                    await asyncio.to_thread(remove_plain, api, f"{INSTALLATION}={installation}")
        finally:
            await provider.close()
