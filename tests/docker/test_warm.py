"""Warm sandboxes: started ahead, adopted by one job each, and gone when nobody wants them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fanout.workers.sandbox.docker import warm_pool
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import WARM
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command, SandboxSpec, nobody
from tests.docker.conftest import MIB, SnapshotFolder, changed_paths, leftovers, make_sandbox_spec
from tests.waits import eventually

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.slow]


async def warm_up(provider: DockerProvider, spec: SandboxSpec, number: int = 1) -> None:
    """Have warm sandboxes of a shape; the jobs that were expected are no more."""
    with ExitStack() as stack:
        for each in range(number):
            stack.enter_context(provider.expect(replace(spec, job_id=f"expected-{each}")))
        await eventually(lambda: has_warm(provider, number))


async def has_warm(provider: DockerProvider, number: int) -> bool:
    return provider._pool.ready == number


async def names(engine: Engine, provider: DockerProvider) -> set[str]:
    labels = [provider._names.of_installation, "fanout.role=sandbox"]
    return {each["Id"] for each in await engine.containers(labels)}


async def is_named(engine: Engine, container: str, job_id: str) -> bool:
    found = await engine.containers(["fanout.role=sandbox"])
    return any(each["Id"] == container and job_id in each["Names"][0] for each in found)


async def warm_volumes(engine: Engine, provider: DockerProvider) -> list[str]:
    volumes = await engine.volumes(provider._names.of_installation)
    return [each["Name"] for each in volumes if WARM in each["Labels"]]


async def test_a_job_adopts_a_warm_sandbox_with_its_snapshot_limits_and_changes(
    provider: DockerProvider, engine: Engine, snapshots: SnapshotFolder
) -> None:
    spec = make_sandbox_spec(snapshot=snapshots.add({"a.txt": b"from the snapshot"}))
    await warm_up(provider, spec)
    (warm,) = await names(engine, provider)

    async with provider.open(spec) as sandbox:
        assert await names(engine, provider) == {warm}
        await eventually(lambda: is_named(engine, warm, spec.job_id))
        assert await sandbox.read_bytes("/workspace/a.txt") == b"from the snapshot"
        await sandbox.write_bytes("/workspace/b.txt", b"new")
        memory = await sandbox.run(
            Command(
                argv="cat /sys/fs/cgroup/memory*/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>&-"
            )
        )
        assert str(256 * MIB) in memory.output.decode()
        assert await changed_paths(sandbox) == [("b.txt", "added")]

    async with provider.open(replace(spec, attempt=2)) as again:
        assert again.files_id == sandbox.files_id
        assert await again.read_bytes("/workspace/b.txt") == b"new"
    await provider.discard(spec.job_id)
    async with provider.open(replace(spec, attempt=3)) as fresh:
        assert fresh.files_id != sandbox.files_id


async def test_a_warm_sandbox_is_adopted_once_and_only_by_jobs_of_its_shape(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    spec = make_sandbox_spec()
    await warm_up(provider, spec, 2)
    other = replace(
        spec, job_id="other", limits=spec.limits.model_copy(update={"memory_bytes": 128 * MIB})
    )
    seeded = replace(spec, job_id="seeded", snapshot=snapshots.add({"a": b"x"}))

    async with provider.open(other), provider.open(seeded) as with_files:
        assert provider._pool.ready == 2
        assert await with_files.read_bytes("/workspace/a") == b"x"
    async with provider.open(spec) as one:
        await one.write_bytes("/workspace/secret", b"of one job")
        async with provider.open(replace(spec, job_id="second")) as two:
            assert provider._pool.ready == 0
            assert list(await two.list("/workspace")) == []
            users = [(await each.run(Command(argv="id -u"))).output for each in (one, two)]
            if await provider.shared_user() is None:
                assert users[0] != users[1]


async def test_a_job_with_files_on_this_host_is_opened_on_them(provider: DockerProvider) -> None:
    spec = make_sandbox_spec()
    async with provider.open(spec) as first:
        await first.write_bytes("/workspace/kept", b"x")
    await warm_up(provider, spec)

    async with provider.open(replace(spec, attempt=2)) as second:
        assert await second.read_bytes("/workspace/kept") == b"x"
        assert provider._pool.ready == 1


async def test_another_worker_takes_the_files_of_an_adopted_sandbox_and_ends_it(
    make_provider: Callable[..., DockerProvider],
) -> None:
    first, second = make_provider(), make_provider()
    spec = make_sandbox_spec()
    await warm_up(first, spec)

    async with first.open(spec) as before:
        await before.write_bytes("/workspace/kept", b"x")
        async with second.open(replace(spec, attempt=2)) as after:
            assert await after.read_bytes("/workspace/kept") == b"x"
            with pytest.raises(Exception, match="ended"):
                await before.read_bytes("/workspace/kept")


async def test_the_reaper_ends_an_adopted_sandbox_of_an_ended_job_and_no_warm_one(
    make_provider: Callable[..., DockerProvider], engine: Engine
) -> None:
    first, second = make_provider(), make_provider()
    spec = make_sandbox_spec()
    await warm_up(first, spec, 2)
    async with first.open(spec):
        assert len(await names(engine, first)) == 2

        await second.reap(nobody)

        assert len(await names(engine, first)) == 1
    assert first._pool.ready == 1
    async with first.open(make_sandbox_spec()) as other:
        assert (await other.run(Command(argv="true"))).exit_code == 0
        assert first._pool.ready == 0


async def test_a_warm_sandbox_that_died_is_noticed_and_the_job_starts_cold(
    provider: DockerProvider, engine: Engine
) -> None:
    spec = make_sandbox_spec()
    await warm_up(provider, spec)
    (warm,) = await names(engine, provider)
    await engine.remove_container(warm)

    async with provider.open(spec) as sandbox:
        assert (await sandbox.run(Command(argv="true"))).exit_code == 0


async def test_warm_sandboxes_that_nobody_wants_are_removed_after_a_while(
    provider: DockerProvider, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "IDLE_SECONDS", 0.2)
    await warm_up(provider, make_sandbox_spec())

    await eventually(lambda: has_warm(provider, 0))

    async def is_gone() -> bool:
        return not await warm_volumes(engine, provider) and not await names(engine, provider)

    await eventually(is_gone)


async def test_jobs_that_seldom_use_their_sandbox_cause_no_more_starts(
    provider: DockerProvider,
) -> None:
    spec = make_sandbox_spec()
    async with provider.open(spec):
        pass
    for each in range(4):
        with provider.expect(replace(spec, job_id=f"unused-{each}")):
            pass
    await asyncio.sleep(0)
    started = provider._pool.ready

    with provider.expect(make_sandbox_spec()):
        await asyncio.sleep(1)
        assert provider._pool.ready <= started


async def test_queued_jobs_find_warm_sandboxes(provider: DockerProvider) -> None:
    spec = make_sandbox_spec()
    provider.expect_next([spec, replace(spec, job_id="next", agent="another")])

    await eventually(lambda: has_warm(provider, 2))

    with provider.expect(spec):  # it runs now: that is the same wish
        await asyncio.sleep(0)
        async with provider.open(spec):
            assert provider._pool.ready == 1
    provider.expect_next([])


async def test_a_job_that_runs_and_those_queued_before_it_are_not_waited_for_any_more(
    provider: DockerProvider, engine: Engine
) -> None:
    spec = make_sandbox_spec()
    await warm_up(provider, spec, 2)
    before = await names(engine, provider)

    provider.expect_next([replace(spec, job_id="of-another-worker"), spec])
    with provider.expect(spec):
        async with provider.open(spec):
            await asyncio.sleep(1)  # a start would have begun
            assert provider._pool.ready == 1
            assert await names(engine, provider) == before


@pytest.mark.parametrize("limit", [{"warm": 1}, {"warm": 2, "processes": 2}])
async def test_no_more_are_started_than_a_process_may(
    make_provider: Callable[..., DockerProvider], limit: dict[str, int]
) -> None:
    provider = make_provider(**limit)
    spec = make_sandbox_spec()
    with provider.expect(spec), provider.expect(replace(spec, job_id="second")):
        await eventually(lambda: has_warm(provider, 1))
        await asyncio.sleep(1)
        assert provider._pool.ready == 1
    none = make_provider(warm=0)
    with none.expect(spec):
        await asyncio.sleep(0.2)
        assert none._pool.ready == 0


KILLED_WORKER = """
    import asyncio, sys, structlog
    from fanout.workers.sandbox.docker import naming
    from fanout.workers.sandbox.docker.provider import DockerProvider
    from tests.docker.conftest import make_sandbox_spec
    from tests.docker.test_warm import warm_up

    naming.START_SECONDS = 0.0
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    async def main():
        provider = DockerProvider(None, installation=sys.argv[1], worker="killed")
        spec = make_sandbox_spec(job_id=sys.argv[2])
        await warm_up(provider, spec, 2)
        async with provider.open(spec) as sandbox:
            await sandbox.write_bytes("/workspace/kept", b"x")
            print(sandbox.files_id, flush=True)
            await asyncio.sleep(100)

    asyncio.run(main())
"""


async def test_after_a_kill_an_adopted_sandbox_leaves_its_files_and_a_warm_one_nothing(
    make_provider: Callable[..., DockerProvider],
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.workers.sandbox.docker.removals.START_SECONDS", 0.0)
    monkeypatch.setattr("fanout.workers.sandbox.docker.naming.START_SECONDS", 0.0)
    provider = make_provider(worker="living")
    installation = provider._names.installation
    spec = make_sandbox_spec()
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(KILLED_WORKER), installation, spec.job_id,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert killed.stdout is not None
    files_id = (await killed.stdout.readline()).decode().strip()
    os.kill(killed.pid, signal.SIGKILL)
    await killed.wait()

    async with provider.open(replace(spec, attempt=2)) as again:
        assert again.files_id == files_id
        assert await again.read_bytes("/workspace/kept") == b"x"

    async def is_clean() -> bool:
        await provider.reap(nobody)
        return not await names(engine, provider) and not await warm_volumes(engine, provider)

    await eventually(is_clean)
    steward = await provider._steward()
    assert await steward.warm(-1) == []


async def test_a_closed_provider_leaves_no_warm_sandbox(
    make_provider: Callable[..., DockerProvider], engine: Engine
) -> None:
    provider = make_provider()
    await warm_up(provider, make_sandbox_spec(), 2)
    with provider.expect(make_sandbox_spec(snapshot=None)):
        await provider.close()

    assert await leftovers(engine, provider._names.installation) == []
