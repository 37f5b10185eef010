"""What dead workers left on an engine goes, whatever state it is in; nothing holds up the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import container_config, removals
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import Names
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import EngineUnavailable, SandboxStartFailed
from fanout.workers.sandbox.protocol import nobody
from tests.docker.conftest import make_sandbox_spec

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(removals, "STEP_SECONDS", 1.0)


async def hold(engine: Engine, names: Names, state: str) -> str:
    """A container of that worker in that state; its name."""
    await asyncio.to_thread(container_config.seccomp_profile)  # read once, off the loop
    config = container_config.holder_config(image="fanout/base", labels=names.labels("network"))
    config["Entrypoint"] = ["sleep", "600"]  # deaf to the end of its stream, as one that hangs
    config["HostConfig"]["AutoRemove"] = False
    name = names.container("network", state)
    await engine.create_container(name, config)
    if state != "created":
        await engine.start(name)
    if state == "paused":
        await engine.call("pause", lambda api: api.pause(name))
    if state == "exited":
        await engine.call("kill", lambda api: api.kill(name))
    return name


async def names_on(engine: Engine, installation: str) -> list[str]:
    listed = await engine.containers([f"fanout.installation={installation}"])
    return [container["Names"][0].removeprefix("/") for container in listed]


def of_workers(alive: list[str]) -> Callable[[], Awaitable[list[str]]]:
    async def living() -> list[str]:
        return alive

    return living


@pytest.mark.slow
async def test_whatever_a_dead_worker_left_goes_and_a_living_ones_stays(
    make_provider: Callable[..., DockerProvider], engine: Engine
) -> None:
    alive = ["other"]
    provider = make_provider(worker="me", living_workers=of_workers(alive))
    installation = provider._names.installation
    dead, other = Names(installation, "dead"), Names(installation, "other")
    await asyncio.gather(
        *(hold(engine, dead, state) for state in ("created", "running", "paused", "exited"))
    )
    kept = [await hold(engine, other, state) for state in ("created", "running")]
    former = await hold(engine, Names(installation, "me"), "running")

    await provider.reap(nobody)
    first = await names_on(engine, installation)
    assert former not in first  # of a process that had this worker's name
    assert len([name for name in first if ".network." in name]) >= 3 + len(
        kept
    )  # the exited one has gone
    await asyncio.sleep(0.3)
    await provider.reap(nobody)

    left = await names_on(engine, installation)
    assert set(kept) <= set(left)
    assert not [name for name in left if name.rpartition(".")[0].endswith(("paused", "exited"))]
    assert sum(".running." in name or ".created." in name for name in left) == len(kept)
    alive.clear()
    await asyncio.sleep(0.3)
    await provider.reap(nobody)  # is missed for the first time
    await asyncio.sleep(0.3)
    await provider.reap(nobody)
    assert not set(kept) & set(await names_on(engine, installation))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["busy", "fails", "hangs"])
async def test_one_that_is_not_removed_holds_up_none_of_the_others_and_is_tried_again(
    make_provider: Callable[..., DockerProvider],
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    provider = make_provider(worker="me", living_workers=of_workers([]))
    dead = Names(provider._names.installation, "dead")
    stuck = await hold(engine, dead, "exited")
    others = [await hold(engine, dead, "exited") for _ in range(3)]
    stuck_id = (await engine.call("look", lambda api: api.inspect_container(stuck)))["Id"]
    remove, may_go_on = provider._engine.remove_container, asyncio.Event()
    failures: dict[str, SandboxFailure] = {
        "busy": EngineUnavailable("The Docker engine does not remove a container."),
        "fails": SandboxStartFailed("driver failed to remove root filesystem: device busy"),
    }

    async def unwilling(container: str, **more: Any) -> bool:
        if container == stuck_id and how == "hangs":
            await may_go_on.wait()
        elif container == stuck_id:
            raise failures[how]
        return await remove(container, **more)

    monkeypatch.setattr(provider._engine, "remove_container", unwilling)
    async with asyncio.timeout(50):
        await provider.reap(nobody)
    left = await names_on(engine, dead.installation)
    assert stuck in left
    assert not set(others) & set(left)

    monkeypatch.setattr(provider._engine, "remove_container", remove)
    may_go_on.set()
    await provider.reap(nobody)
    assert stuck not in await names_on(engine, dead.installation)


@pytest.mark.slow
async def test_an_engine_that_hangs_does_not_keep_an_attempt_from_ending(
    make_provider: Callable[..., DockerProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    remove, may_go_on = provider._engine.remove_container, asyncio.Event()

    async def hanging(container: str) -> bool:
        await may_go_on.wait()
        return await remove(container)

    async with asyncio.timeout(50), provider.open(make_sandbox_spec()) as sandbox:
        await sandbox.write_bytes("/workspace/file", b"content")
        monkeypatch.setattr(provider._engine, "remove_container", hanging)
    may_go_on.set()
