"""The file tools on every backend.

Tests with them run in the session's event loop, as the container does.
"""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService

from fanout.orchestrator.deep_agent.backends.artifact_store import (
    ArtifactBackend,
    StoreBackend,
)
from fanout.orchestrator.deep_agent.backends.composite import CompositeBackend
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend, FilesystemBackend
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.context.eviction import with_artifacts
from fanout.orchestrator.deep_agent.execution import LocalExecution
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import WORKSPACE, Sandbox, SandboxProvider, SandboxSpec, nobody
from tests.conftest import missing
from tests.contract.file_tools import Tools

WITH_A_SHELL = ["local_shell", "local_sandbox", pytest.param("docker", marks=pytest.mark.docker)]
EVERY_BACKEND = [
    "state",
    "directory",
    "route_to_state",
    "overlay",
    "filesystem",
    "artifacts",
    # Combinations of those above.
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("route_to_directory", "beside_a_shell", "store")
    ),
    *WITH_A_SHELL,
]

ON_TWO_BACKENDS = [
    one if one == "state" or not isinstance(one, str) else pytest.param(one, marks=pytest.mark.slow)
    for one in EVERY_BACKEND
]
"""For what begins with a file's bytes: it is quick on a session's state and in a container."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a container the first of a test's sets of parameters is quick; the others are slow."""
    in_containers = [
        item
        for item in items
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("docker")
    ]
    seen = set[str]()
    for item in in_containers:
        test = item.nodeid.partition("[")[0]
        if test in seen:
            item.add_marker(pytest.mark.slow)
        seen.add(test)


@pytest.fixture(params=EVERY_BACKEND)
def tools(request: pytest.FixtureRequest) -> Tools:
    """The file tools on an empty backend of each kind."""
    found: Tools = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=WITH_A_SHELL)
def shell(request: pytest.FixtureRequest) -> Tools:
    """The file tools on each kind of backend that executes."""
    found: Tools = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short name; `tmp_path` keeps what tests leave, and some leave much."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def state() -> Tools:
    return Tools(StateBackend(DictState()))


@pytest.fixture
def directory(folder: Path) -> Tools:
    return Tools(DirectoryBackend(folder, mount=WORKSPACE), folder=folder)


@pytest.fixture
def route_to_directory(folder: Path) -> Tools:
    """The directory under a route; everything else is in the state."""
    routes = {WORKSPACE: DirectoryBackend(folder, mount="/elsewhere")}
    return Tools(CompositeBackend(StateBackend(DictState()), routes), folder=folder)


@pytest.fixture
def route_to_state(folder: Path) -> Tools:
    """As a deep agent has it: its directory, and the session's state under two routes."""
    backend = with_artifacts(DirectoryBackend(folder, mount=WORKSPACE), DictState())
    return Tools(backend, folder=folder)


@pytest.fixture
def overlay(folder: Path) -> Tools:
    """As a sub-agent in process has it: its changes stay above its parent's files."""
    return Tools(OverlayBackend(DirectoryBackend(folder, mount=WORKSPACE)), folder=folder)


@pytest.fixture
def filesystem(folder: Path) -> Tools:
    """The folder is the whole file system, in which the tests use one directory."""
    below = folder / WORKSPACE[1:]
    below.mkdir()
    return Tools(FilesystemBackend(folder), folder=below)


@pytest.fixture
def beside_a_shell(folder: Path) -> Tools:
    """As `execution="local"` makes it."""
    files = DirectoryBackend(folder, mount=WORKSPACE)
    return Tools(LocalExecution(files, LocalShellBackend(folder)), folder=folder)


@pytest.fixture
def artifacts() -> Tools:
    """A session's files as artifacts in memory."""
    scope = {"app_name": "app", "user_id": "u", "session_id": "s"}
    return Tools(ArtifactBackend(InMemoryArtifactService(), **scope))


@pytest.fixture
def store(folder: Path) -> Tools:
    """A user's files as artifacts in a directory, under a route."""
    service = FileArtifactService(folder)
    files = StoreBackend(service, app_name="app", user_id="u", namespace="memories")
    return Tools(CompositeBackend(StateBackend(DictState()), {WORKSPACE: files}))


@pytest.fixture
def local_shell(folder: Path) -> Tools:
    return Tools(LocalShellBackend(folder), str(folder), folder=folder)


class Containers:
    """Keeps one container for many tests.

    It ends when no heartbeat comes: while tests on other loops run.
    """

    def __init__(self, provider: DockerProvider) -> None:
        self._provider = provider
        self._open: AsyncExitStack | None = None
        self._container: Sandbox | None = None

    async def living(self) -> Sandbox:
        """The container that is there, or a new one."""
        if self._container is not None:
            with suppress(SandboxFailure):
                await self._container.list(WORKSPACE)
                return self._container
        await self._let_go()
        self._open = AsyncExitStack()
        self._container = await self._open.enter_async_context(self._provider.open(_spec()))
        return self._container

    async def close(self) -> None:
        await self._let_go()
        await self._provider.reap(nobody)
        await self._provider.close()

    async def _let_go(self) -> None:
        if self._open is not None:
            with suppress(SandboxFailure):
                await self._open.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def local_sandbox(shared_local_sandbox: Sandbox) -> AsyncIterator[Tools]:
    yield Tools(shared_local_sandbox)
    await _empty(shared_local_sandbox)


@pytest_asyncio.fixture(loop_scope="session")
async def docker(containers: Containers) -> AsyncIterator[Tools]:
    container = await containers.living()
    yield Tools(container)
    await _empty(container)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_local_sandbox() -> AsyncIterator[Sandbox]:
    folder = await asyncio.to_thread(lambda: Path(tempfile.mkdtemp()))
    provider = await asyncio.to_thread(LocalProvider, _no_snapshot, folder, _installation())
    async with _opened(provider) as sandbox:
        yield sandbox
    await asyncio.to_thread(shutil.rmtree, folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def containers() -> AsyncIterator[Containers]:
    """Real containers, one after another, for all tests of this process."""
    provider = DockerProvider(_no_snapshot, installation=_installation(), worker="contract")
    try:
        await provider.probe("fanout/python")
    except SandboxFailure as failure:
        missing(str(failure))
    containers = Containers(provider)
    yield containers
    await containers.close()


@asynccontextmanager
async def _opened(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    """A sandbox of the provider, of which nothing is left afterwards."""
    async with provider.open(_spec()) as sandbox:
        yield sandbox
    await provider.reap(nobody)
    await provider.close()


def _spec() -> SandboxSpec:
    limits = Limits(
        timeout_seconds=600, cpus=1, memory_bytes=2**30, pids=200, disk_bytes=2**30, network="none"
    )
    return SandboxSpec(job_id=new_job_id(), attempt=1, image="fanout/python", limits=limits)


async def _empty(sandbox: Sandbox) -> None:
    for entry in await sandbox.list(WORKSPACE):
        await sandbox.delete(entry.path)


async def _no_snapshot(blob_id: str) -> Path:
    raise AssertionError(blob_id)


def _installation() -> str:
    return f"contract-{secrets.token_hex(4)}"
