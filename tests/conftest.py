"""What holds for every test.

No way to a real model, a clean environment, a loop that is never blocked.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from functools import cache, wraps
from pathlib import Path
from typing import Any

import docker
import hypothesis
import pytest
import redis
from blockbuster import BlockBuster
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.client import JobClient
from tests.forked import ADDRESS, start_fork_server
from tests.services import Installation, Installer, RedisProcess

OURS = ["fanout"]

pytest_plugins = ["tests.one_of_each", "tests.skips"]

FOREIGN_SETTINGS = (
    "FANOUT_",
    "GOOGLE_",
    "GEMINI_",
    "ANTHROPIC_",
    "OPENAI_",
    "AZURE_",
    "OLLAMA_",
    "LITELLM_",
)
"""Variables that name a service or carry a key: none of the developer's reaches a test or its
children."""


class OutsideConnection(RuntimeError):
    """A test tried to reach another machine."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "blocks_loop(why): the event loop may be blocked")
    # On a busy machine an example takes as long as it takes. CI's verdict depends on the tree only;
    # each run of a developer tries new inputs.
    hypothesis.settings.register_profile(
        "busy machine",
        derandomize="CI" in os.environ,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("busy machine")
    gc.disable()  # until all is imported, of which nothing is garbage: a quarter of that time
    for name in list(os.environ):
        if name.startswith(FOREIGN_SETTINGS) or name.endswith("_API_KEY"):
            del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = "/nowhere"  # nor the developer's configuration
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's background jobs ignore it, and so would all that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if ADDRESS not in os.environ:  # xdist's processes share the first one's
        start_fork_server()
    for method in ("connect", "connect_ex"):
        setattr(socket.socket, method, _only_here(getattr(socket.socket, method)))


def pytest_collection_finish() -> None:
    gc.freeze()  # nor do the tests' collections look at it again
    gc.enable()


def _only_here(connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
    """A socket's method that refuses other machines.

    An audit hook would do it in fewer lines. But up to Python 3.11 other threads may run inside
    one, and a thread that coverage is to trace dies when two set their trace functions at once.
    """

    @wraps(connect)
    def guarded(self: socket.socket, address: Any, /) -> Any:
        if not _is_here(address):
            raise OutsideConnection(f"{address} is not this machine")
        return connect(self, address)

    return guarded


def _is_here(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a path: a Unix socket
    host = str(address[0]).partition("%")[0]
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host in {"localhost", ""}
    return parsed.is_loopback or parsed.is_unspecified


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") and not docker_answers():
        missing("No Docker engine answers.")
    if item.get_closest_marker("redis") and shutil.which("redis-server") is None:
        missing("There is no redis-server on PATH.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a test that failed what its workers wrote last."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Installation):
                report.sections += [(worker.log.name, worker.tail()) for worker in value.workers]
    return report


def missing(what: str) -> None:
    """Skip at a desk; in CI a service that is not there is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@cache
def docker_answers() -> bool:
    """Whether there is a Docker engine."""
    try:
        client = docker.from_env(timeout=10)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


@pytest.fixture(autouse=True)
def unblocked_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test whose code of ours blocks the event loop."""
    if request.node.get_closest_marker("blocks_loop"):
        yield
        return
    guard = _guard()
    guard.activate()
    yield
    guard.deactivate()


MAY_BLOCK = {
    (
        "weakref.py",
        "__call__",
    ): "a temporary folder that an earlier test left to the garbage collector, at any moment",
    (
        "fakeredis/model/_command_info.py",
        "_load_command_info",
    ): "the stand-in for Redis reads its tables once",
    (
        "orchestrator/jobs/store/lua_scripts.py",
        "script_source",
    ): "reads its own scripts once, when a process starts",
    (
        "orchestrator/deep_agent/backends/directory.py",
        "__init__",
    ): "makes a path absolute and looks whether its folder exists, once, when an agent is made",
    (
        "orchestrator/deep_agent/backends/proc_table.py",
        "_waits_in_the_kernel",
    ): "asks the kernel for the state of a thread of its own, which waits for nothing",
    (
        "orchestrator/deep_agent/execution.py",
        "with_local_shell",
    ): "looks up the working directory once, when an agent is made",
    (
        "orchestrator/deep_agent/models/resolve.py",
        "_single",
    ): "imports a provider's client once, where nobody did it in a thread before (preload_client)",
    (
        "google/adk/runners.py",
        "_infer_agent_origin",
    ): "ADK looks where our class of agents is defined, once for each runner: a few lookups of known folders",
    (
        "orchestrator/deep_agent/models/litellm.py",
        "generate_content_async",
    ): "LiteLLM asks the disk for certificates with each new client, for less than a millisecond",
    ("orchestrator/deep_agent/models/facts.py", "_find"): "loads its table once; as above",
    (
        "orchestrator/deep_agent/models/scripted_model.py",
        "load",
    ): "a script stands for a model in tests and demos only",
}
"""Functions of ours that may block the loop, and why."""


@cache
def _guard() -> BlockBuster:
    guard = BlockBuster(OURS)
    for function in guard.functions.values():
        for filename, name in MAY_BLOCK:
            function.can_block_in(filename, name)
    for function in guard.functions.values():
        # Composition: reads settings and definitions once, before there is anything to hold up.
        function.can_block_in("orchestrator/client/job_client.py", {"__init__", "from_settings"})
        # The Redis client looks up its own version with each new connection.
        function.can_block_in("redis/utils.py", {"get_lib_version"})
        # What measures coverage guards its own data, wherever it is called.
        function.can_block_in("coverage/collector.py", {"lock_data"})
        # What a test was doing when its time was over.
        function.can_block_in("pytest_timeout.py", {"timeout_sigalrm"})
    return guard


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Installer]:
    """Makes installations in the test's folder, which end with the test."""
    with ExitStack() as opened:
        yield Installer(tmp_path, opened)


@pytest.fixture(scope="module")
def install_for_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installer]:
    """Makes installations that the module's tests share."""
    with ExitStack() as opened:
        yield Installer(tmp_path_factory.mktemp("installation"), opened)


@pytest.fixture(name="redis")
async def fake_redis() -> AsyncIterator[FakeAsyncRedis]:
    """A fake Redis inside of this process."""
    async with FakeAsyncRedis(decode_responses=True) as client:
        yield client


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with one file."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "kept.txt").write_text("kept\n")
    return folder


@pytest.fixture
async def client(place: Installation) -> AsyncIterator[JobClient]:
    """A client of the module's place, once its workers have registered."""
    async with place.client() as client:
        await place.ready(client, len(place.workers))
        yield client


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A private Redis that writes every change to disk before it answers."""
    if shutil.which("redis-server") is None:
        missing("There is no redis-server on PATH.")
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisProcess) -> str:
    """The private Redis, empty."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url
