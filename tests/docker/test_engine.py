from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker import errors as docker_errors

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine, translated
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import EngineUnavailable, EngineUnfit
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec

SOCKET = "/var/run/docker.sock"


def exceptions_of(module: object) -> list[type[Exception]]:
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    return [kind for kind in kinds if issubclass(kind, Exception) and not issubclass(kind, Warning)]


@pytest.mark.parametrize(
    "kind", [*exceptions_of(docker_errors), *exceptions_of(requests.exceptions)]
)
def test_every_exception_of_the_library_becomes_one_of_ours(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    error.args = ("something",)
    for name, value in {
        "explanation": "because",
        "response": SimpleNamespace(status_code=500),
    }.items():
        setattr(error, name, value)

    failure = translated(error, "start the container", "unix:///run/docker.sock")

    assert isinstance(failure, SandboxFailure)
    assert str(failure).endswith((".", "because"))


@pytest.mark.parametrize(
    "reason",
    [
        "Could not kill running container 1, cannot remove - Container 1 is not running",
        "cannot remove container 1: container state improper",
    ],
)
async def test_a_container_that_ends_while_it_is_removed_is_removed(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: Any = SimpleNamespace(status_code=500)
    failures = [docker_errors.APIError("", busy, reason)]

    def remove_container(*_: object, **_options: object) -> None:
        if failures:
            raise failures.pop()

    api = SimpleNamespace(remove_container=remove_container)
    monkeypatch.setattr("docker.APIClient", lambda **_options: api)

    assert await Engine("unix:///docker.sock").remove_container("1")
    assert failures == []


async def test_without_an_engine_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/docker.sock"
    provider = DockerProvider(
        SnapshotFolder(tmp_path).fetch, installation="nobody", worker="w", docker_host=nowhere
    )
    with pytest.raises(EngineUnavailable, match=r"start Docker\.$"):
        await provider.probe()
    with pytest.raises(EngineUnavailable):
        async with provider.open(make_sandbox_spec()):
            pass
    await provider.close()


def test_the_id_of_an_installation_becomes_part_of_names_and_may_not_be_anything() -> None:
    for installation in ("", "a/b", "a b", "-a", "a.b", "x" * 64):
        with pytest.raises(ValueError, match="installation"):
            DockerProvider(SnapshotFolder(Path()).fetch, installation=installation, worker="w")


async def test_work_that_may_not_be_left_half_done_ends_before_a_cancellation_counts() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0.1)
        done.append("done")

    task = asyncio.create_task(uninterrupted(work()))
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert done == ["done"]


@pytest.fixture
async def tcp_engine(engine: Engine) -> AsyncIterator[str]:
    """The engine, reached as one on another host is."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(SOCKET)
        await asyncio.gather(
            pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def use(provider: DockerProvider, snapshots: SnapshotFolder) -> None:
    snapshot = snapshots.add({"file": b"content" * 100_000})
    async with provider.open(make_sandbox_spec(snapshot=snapshot)) as sandbox:
        assert await sandbox.read_bytes("/workspace/file") == b"content" * 100_000
        await sandbox.write_bytes("/workspace/big", bytes(3_000_000))
        result = await sandbox.run(Command(argv="wc -c < big"))
        assert result.output == b"3000000\n"
        assert await changed_paths(sandbox) == [("big", "added")]


@pytest.mark.docker
@pytest.mark.slow
async def test_a_remote_engine_works_like_a_local_one(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder, tcp_engine: str
) -> None:
    await use(make_provider(docker_host=tcp_engine), snapshots)


async def test_an_engine_behind_ssh_is_refused_with_a_way_to_reach_it() -> None:
    with pytest.raises(EngineUnavailable, match="ssh -N -L"):
        await Engine("ssh://someone@elsewhere").version()


@pytest.mark.docker
async def test_an_engine_that_loses_limits_without_a_word_opens_no_sandbox(
    make_provider: Callable[..., DockerProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Engine.create_container

    async def create(engine: Engine, name: str, config: Mapping[str, Any]) -> str:
        kept = {**config["HostConfig"], "Memory": 0, "MemorySwap": 0, "PidsLimit": 0}
        return await genuine(engine, name, {**config, "HostConfig": kept})

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "create_container", create)
        with pytest.raises(EngineUnfit, match="without the limits memory_bytes, pids"):
            async with make_provider().open(make_sandbox_spec()):
                pass
