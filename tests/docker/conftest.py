from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pytest
import pytest_asyncio

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import INSTALLATION
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Sandbox, SandboxSpec, nobody
from tests.conftest import missing

MIB = 1024**2


class SnapshotFolder:
    """Snapshot archives by id, as a worker's cache has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fetched: list[str] = []

    def add(self, files: Mapping[str, bytes]) -> str:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, content in sorted(files.items()):
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return self.add_archive(buffer.getvalue())

    def add_archive(self, archive: bytes) -> str:
        identity = hashlib.sha256(archive).hexdigest()
        (self._folder / identity).write_bytes(archive)
        return identity

    async def fetch(self, identity: str) -> Path:
        self.fetched.append(identity)
        return self._folder / identity


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotFolder:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    return SnapshotFolder(folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_provider() -> AsyncIterator[DockerProvider]:
    """A provider for tests that only need a sandbox: it lives as long as this process.

    Such tests run on the session's loop.
    """

    async def fetch(identity: str) -> Path:
        raise AssertionError(f"no test that shares a provider has snapshots: {identity}")

    engine = Engine()
    if await engine.image("fanout/python") is None:
        missing("The engine has no image fanout/python.")
    installation = f"test-{secrets.token_hex(4)}"
    provider = DockerProvider(fetch, installation=installation, worker="shared")
    yield provider
    await provider.reap(nobody)
    await provider.close()
    assert await leftovers(engine, installation) == []
    await engine.close()


ON_SHARED_PROVIDER = [
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]
"""The marks of a module whose tests share a provider: it names `provider_of_session` `provider`."""


@pytest.fixture
def provider_of_session(shared_provider: DockerProvider) -> DockerProvider:
    return shared_provider


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    if await engine.image("fanout/python") is None:
        missing("The engine has no image fanout/python.")
    yield engine
    await engine.close()


@pytest.fixture
async def make_provider(
    engine: Engine, snapshots: SnapshotFolder
) -> AsyncIterator[Callable[..., DockerProvider]]:
    """Providers of one installation, which has left nothing on the engine when the test is over."""
    installation = f"test-{secrets.token_hex(4)}"
    made: list[DockerProvider] = []

    def make(**options: Any) -> DockerProvider:
        made.append(
            DockerProvider(
                snapshots.fetch,
                **{"installation": installation, "worker": f"w{len(made)}", **options},
            )
        )
        return made[-1]

    yield make
    for provider in made:
        if provider is made[-1]:
            await provider.reap(nobody)
        await provider.close()
    assert await leftovers(engine, installation) == []


@pytest.fixture
def provider(make_provider: Callable[..., DockerProvider]) -> DockerProvider:
    return make_provider()


async def leftovers(engine: Engine, installation: str) -> list[str]:
    containers = await engine.containers([f"{INSTALLATION}={installation}"])
    volumes = await engine.volumes(f"{INSTALLATION}={installation}")
    return [
        # One without a name is being removed by the engine at this moment.
        *(name for container in containers for name in container["Names"] or ()),
        *(volume["Name"] for volume in volumes),
    ]


def make_sandbox_spec(**fields: Any) -> SandboxSpec:
    limits = Limits(
        timeout_seconds=60,
        cpus=1,
        memory_bytes=256 * MIB,
        pids=100,
        disk_bytes=64 * MIB,
        network="none",
    )
    values: dict[str, Any] = {
        "job_id": new_job_id(),
        "attempt": 1,
        "image": "fanout/python",
        "limits": limits,
    }
    return SandboxSpec(**{**values, **fields})


async def changed_paths(sandbox: Sandbox) -> list[tuple[str, str]]:
    """Path and kind of each change."""

    def read(bundle: IO[bytes]) -> list[tuple[str, str]]:
        with bundle, ChangeBundle.open(bundle) as opened:
            return [(file.path, file.change.value) for file in opened.changes.files]

    return await asyncio.to_thread(read, await sandbox.changes())
