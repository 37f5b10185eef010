from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import EXPIRES, JOB, Names
from fanout.workers.sandbox.docker.provider import DockerProvider, DockerSandbox
from fanout.workers.sandbox.docker.removals import AT_ONCE
from fanout.workers.sandbox.docker.steward_client import Steward
from fanout.workers.sandbox.errors import (
    ChangesUnreadable,
    ImageMissing,
    SandboxDied,
    SandboxStartFailed,
)
from fanout.workers.sandbox.protocol import Command, SandboxSpec, nobody
from tests.docker.conftest import SnapshotFolder, changed_paths, leftovers, make_sandbox_spec
from tests.faults.stopping import running
from tests.waits import eventually

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


async def containers_of(engine: Engine, spec: SandboxSpec) -> list[str]:
    return [container["Id"] for container in await engine.containers([f"{JOB}={spec.job_id}"])]


async def until_removed(engine: Engine, spec: SandboxSpec) -> None:
    """Wait for what is removed of a closed sandbox in the background."""
    await eventually(lambda: containers_of(engine, spec), lambda left: not left)
    label = f"{JOB}={spec.job_id}"
    await eventually(lambda: engine.volumes(label), lambda left: not left)


@pytest.mark.slow
async def test_eight_sandboxes_open_at_once_and_each_has_its_own_files(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add({"shared.txt": b"from the snapshot"})

    async def run(number: int) -> bytes:
        async with provider.open(make_sandbox_spec(snapshot=snapshot)) as sandbox:
            await sandbox.write_bytes("/workspace/shared.txt", f"by {number}".encode())
            await asyncio.sleep(0.2)
            return await sandbox.read_bytes("/workspace/shared.txt")

    results = await asyncio.gather(*(run(number) for number in range(8)))

    assert results == [f"by {number}".encode() for number in range(8)]
    assert snapshots.fetched == [snapshot]


@pytest.mark.slow
async def test_nothing_is_left_of_a_closed_sandbox_but_its_files(
    provider: DockerProvider, engine: Engine
) -> None:
    spec = make_sandbox_spec()
    async with provider.open(spec) as sandbox:
        await sandbox.run(Command(argv="setsid sleep 1000417 & echo started"))
        assert len(await containers_of(engine, spec)) == 1
        assert await asyncio.to_thread(running, "sleep 1000417")

    assert not await asyncio.to_thread(running, "sleep 1000417")
    await until_removed(engine, spec)


@pytest.mark.slow
async def test_its_processes_are_dead_at_the_close_before_the_engine_removes_its_container(
    provider: DockerProvider, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has its turn later, so it does not end hundreds of containers at once."""
    asked, may_go_on = asyncio.Event(), asyncio.Event()
    remove = Engine.remove_container

    async def remove_later(engine: Engine, container: str) -> bool:
        asked.set()
        await may_go_on.wait()
        return await remove(engine, container)

    specs = [make_sandbox_spec() for _ in range(4)]
    sleep = f"sleep 4157{os.getpid()}"
    async with contextlib.AsyncExitStack() as stack:
        for spec in specs:
            sandbox = await stack.enter_async_context(provider.open(spec))
            await sandbox.run(Command(argv=f"setsid {sleep} >/dev/null 2>&1 &"))
        assert len(running(sleep)) == len(specs)
        monkeypatch.setattr(Engine, "remove_container", remove_later)

    assert running(sleep) == []
    await asked.wait()
    waiting = [spec for spec in specs if await containers_of(engine, spec)]
    assert len(waiting) >= len(specs) - AT_ONCE
    may_go_on.set()
    for spec in specs:
        await until_removed(engine, spec)


async def test_a_cancelled_caller_leaves_no_container(
    provider: DockerProvider, engine: Engine
) -> None:
    spec = make_sandbox_spec()

    async def work() -> None:
        async with provider.open(spec) as sandbox:
            await sandbox.run(Command(argv="sleep 600"))

    for delay in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0):
        task = asyncio.create_task(work())
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_removed(engine, spec)


@pytest.mark.slow
async def test_the_next_attempt_goes_on_with_the_files_of_the_last(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add({"kept.txt": b"kept", "gone.txt": b"gone"})
    first, second = make_provider(), make_provider()
    spec = make_sandbox_spec(snapshot=snapshot)
    async with first.open(spec) as sandbox:
        await sandbox.write_bytes("/workspace/new.txt", b"new")
        await sandbox.delete("/workspace/gone.txt")
    again = make_sandbox_spec(job_id=spec.job_id, attempt=2, snapshot=snapshot)
    async with second.open(again) as sandbox:
        names = [entry.path for entry in await sandbox.list("/workspace")]

    assert names == ["/workspace/kept.txt", "/workspace/new.txt"]


@pytest.mark.slow
async def test_a_later_attempt_ends_the_container_of_an_earlier_one(
    make_provider: Callable[..., DockerProvider], engine: Engine
) -> None:
    first, second = make_provider(), make_provider()
    spec = make_sandbox_spec()
    later = make_sandbox_spec(job_id=spec.job_id, attempt=2)
    async with first.open(spec) as old, second.open(later) as new:
        with pytest.raises(SandboxDied):
            await old.run(Command(argv="true"))
        assert (await new.run(Command(argv="true"))).exit_code == 0
        assert len(await containers_of(engine, spec)) == 1


async def no_others() -> Collection[str]:
    return ()


@pytest.mark.representative
@pytest.mark.slow
async def test_a_killed_worker_leaves_no_running_container(
    engine: Engine, make_provider: Callable[..., DockerProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = make_provider()._names.installation
    program = textwrap.dedent(f"""
        import asyncio, sys, structlog
        from tests.docker.conftest import make_sandbox_spec
        from fanout.workers.sandbox.docker.provider import DockerProvider
        from fanout.workers.sandbox.protocol import Command

        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

        async def main():
            provider = DockerProvider(None, installation={installation!r}, worker="doomed")
            first, second = make_sandbox_spec(job_id="j1"), make_sandbox_spec()
            async with provider.open(first) as one, provider.open(second) as two:
                print("open", flush=True)
                busy = "trap '' TERM; setsid sleep 1000 & while :; do :; done"
                await asyncio.gather(*(sandbox.run(Command(argv=busy)) for sandbox in (one, two)))

        asyncio.run(main())
    """)
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"open\n"
    os.kill(worker.pid, signal.SIGKILL)
    await worker.wait()

    async def nothing_runs() -> bool:
        found = await engine.containers([f"fanout.installation={installation}"])
        return not [container for container in found if container["State"] == "running"]

    await eventually(nothing_runs, seconds=3)
    monkeypatch.setattr("fanout.workers.sandbox.docker.removals.SILENT_SECONDS", 0.0)
    provider = make_provider(living_workers=no_others)
    await provider.reap(
        nobody
    )  # the worker may have died between the creation of a container and its start
    async with provider.open(make_sandbox_spec(job_id="j1", attempt=2)) as sandbox:
        assert (await sandbox.run(Command(argv="true"))).exit_code == 0


@pytest.mark.slow
async def test_the_reaper_takes_what_is_left_of_jobs_that_are_not_live(
    provider: DockerProvider, engine: Engine
) -> None:
    dead, live, open_here = make_sandbox_spec(), make_sandbox_spec(), make_sandbox_spec()
    for spec in (dead, live):
        async with provider.open(spec) as sandbox:
            await sandbox.write_bytes("/workspace/file", b"content")
    names = provider._names
    config = container_config.holder_config(image="fanout/base", labels={})
    for spec in (dead, live):
        labels = names.labels("sandbox", spec.job_id, 1)
        await engine.create_container(
            names.container("sandbox", spec.job_id), {**config, "Labels": labels}
        )
    stale = {**Names(names.installation, "dead").labels("network"), EXPIRES: "1"}
    await engine.create_container(names.container("network"), {**config, "Labels": stale})

    async def is_live(job_id: str) -> bool:
        return job_id == live.job_id

    async with provider.open(open_here) as sandbox:
        assert await provider.reap(is_live) == 3
        assert await provider.reap(is_live) == 0
        assert (await sandbox.run(Command(argv="true"))).exit_code == 0
        assert len(await containers_of(engine, live)) == 1
    async with provider.open(make_sandbox_spec(job_id=live.job_id, attempt=2)) as sandbox:
        assert await sandbox.read_bytes("/workspace/file") == b"content"
    async with provider.open(make_sandbox_spec(job_id=dead.job_id, attempt=2)) as sandbox:
        assert await sandbox.list("/workspace") == ()


@pytest.mark.slow
async def test_discard_deletes_a_jobs_files(provider: DockerProvider) -> None:
    spec = make_sandbox_spec()
    async with provider.open(spec) as sandbox:
        await sandbox.write_bytes("/workspace/file", b"content")
    await provider.discard(spec.job_id)
    await provider.discard(spec.job_id)
    async with provider.open(make_sandbox_spec(job_id=spec.job_id, attempt=2)) as sandbox:
        assert await sandbox.list("/workspace") == ()


@pytest.mark.slow
async def test_close_keeps_the_volume_while_a_job_has_files_on_it(
    make_provider: Callable[..., DockerProvider], engine: Engine
) -> None:
    first = make_provider()
    spec = make_sandbox_spec()
    async with first.open(spec) as sandbox:
        await sandbox.write_bytes("/workspace/file", b"content")
    await first.close()
    assert first._names.store in await leftovers(engine, first._names.installation)

    second = make_provider()
    await second.reap(nobody)
    await second.close()
    assert await leftovers(engine, first._names.installation) == []


async def test_a_dead_container_is_a_sandbox_failure_and_not_a_commands_output(
    provider: DockerProvider, engine: Engine
) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        assert isinstance(sandbox, DockerSandbox)
        running = asyncio.create_task(sandbox.run(Command(argv="sleep 60")))
        await asyncio.sleep(0.2)
        await engine.remove_container(sandbox.container.name)

        with pytest.raises(SandboxDied):
            await running
        with pytest.raises(SandboxDied):
            await sandbox.read_bytes("/workspace/x")


@pytest.mark.slow
async def test_a_dead_steward_is_replaced(provider: DockerProvider, engine: Engine) -> None:
    spec = make_sandbox_spec()
    async with provider.open(spec) as sandbox:
        await sandbox.write_bytes("/workspace/file", b"content")
        [steward] = await engine.containers(
            [provider._names.of_installation, "fanout.role=steward"]
        )
        await engine.remove_container(steward["Id"])
        await asyncio.sleep(0.1)
        assert await changed_paths(sandbox) == [("file", "added")]
    async with provider.open(make_sandbox_spec()) as sandbox:
        assert (await sandbox.run(Command(argv="true"))).exit_code == 0


@pytest.mark.slow
async def test_changes_that_could_not_be_read_are_collected_once_more(
    provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, failures = Steward.bundle, [ChangesUnreadable("they were in motion")]

    async def bundle(steward: Steward, job: str) -> IO[bytes]:
        if failures:
            raise failures.pop()
        return await genuine(steward, job)

    monkeypatch.setattr(Steward, "bundle", bundle)
    async with provider.open(make_sandbox_spec()) as sandbox:
        await sandbox.write_bytes("/workspace/file", b"content")

        assert await changed_paths(sandbox) == [("file", "added")]


async def test_a_missing_image_says_where_to_get_it_or_the_nearest_name(
    provider: DockerProvider,
) -> None:
    with pytest.raises(ImageMissing, match="the nearest name is fanout/python"):
        async with provider.open(make_sandbox_spec(image="fanout/pyhton")):
            pass
    with pytest.raises(ImageMissing, match="not one of fanout's: fanout/base, fanout/python"):
        async with provider.open(make_sandbox_spec(image="fanout/ruby:latest")):
            pass
    with pytest.raises(ImageMissing, match="build or pull it"):
        async with provider.open(make_sandbox_spec(image="nowhere/nothing:1")):
            pass
    assert (await provider.probe()).cores > 0
    with pytest.raises(ImageMissing):
        await provider.probe("fanout/ruby")


@pytest.mark.slow
async def test_a_container_that_cannot_start_is_a_failed_start_and_leaves_nothing(
    make_provider: Callable[..., DockerProvider], engine: Engine
) -> None:
    provider = make_provider(runtime="no-such-runtime")
    with pytest.raises(SandboxStartFailed):
        async with provider.open(make_sandbox_spec()):
            pass
    assert await engine.containers([provider._names.of_installation, "fanout.role=sandbox"]) == []


async def test_where_no_overlay_can_be_mounted_the_workspace_is_a_copy(
    provider: DockerProvider, snapshots: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Steward._workspace_options

    def broken(self: Steward, job: str, prepared: Mapping[str, Any]) -> dict[str, str]:
        options = genuine(self, job, prepared)
        return (
            {**options, "o": "lowerdir=/nowhere,upperdir=/nowhere,workdir=/nowhere"}
            if options["type"] == "overlay"
            else options
        )

    monkeypatch.setattr(Steward, "_workspace_options", broken)
    snapshot = snapshots.add({"a.txt": b"a", "b.txt": b"b"})
    spec = make_sandbox_spec(snapshot=snapshot)
    async with provider.open(spec) as sandbox:
        await sandbox.write_bytes("/workspace/a.txt", b"changed")
    async with provider.open(
        make_sandbox_spec(job_id=spec.job_id, attempt=2, snapshot=snapshot)
    ) as sandbox:
        assert await sandbox.read_bytes("/workspace/a.txt") == b"changed"
        assert await changed_paths(sandbox) == [("a.txt", "modified")]
