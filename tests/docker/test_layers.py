"""Layers on an engine: mounted, not copied; sent once, and kept while something needs them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable

import pytest

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.workers.sandbox.docker import steward_client
from fanout.workers.sandbox.docker import steward_client as steward_program
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.docker.steward_client import code_files
from fanout.workers.sandbox.protocol import Command
from tests.bundles import BundleBuilder
from tests.docker.conftest import MIB, SnapshotFolder, make_sandbox_spec
from tests.waits import eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def add_layer(snapshots: SnapshotFolder, path: str, content: bytes) -> str:
    builder = BundleBuilder()
    return snapshots.add_archive(builder.add(path, builder.file(content)).build().getvalue())


async def use(provider: DockerProvider, start: StartFiles) -> list[str]:
    """Open a sandbox that starts from there; return the names of its files."""
    spec = make_sandbox_spec(**start.update())
    async with provider.open(spec) as sandbox:
        listed = await sandbox.run(Command(argv="find . -type f -printf '%P\\n' | sort"))
    await provider.discard(spec.job_id)
    return listed.output.decode().split()


async def test_layers_are_mounted_on_a_snapshot_that_is_neither_read_nor_copied_again(
    provider: DockerProvider, snapshots: SnapshotFolder, engine: Engine
) -> None:
    if (await provider.disk_quota()).kind != "image":
        pytest.skip("This engine's steward may not mount.")
    base = snapshots.add({f"f{number}": b"x" for number in range(100)})
    first, second = (add_layer(snapshots, name, b"new") for name in ("one", "two"))
    await use(provider, StartFiles(base))
    snapshots.fetched.clear()

    spec = make_sandbox_spec(snapshot=base, layers=(first, second))
    async with provider.open(spec) as sandbox:
        count = await sandbox.run(Command(argv="ls | wc -l"))
        name = provider._names.workspace(spec.job_id)
        volumes = await engine.volumes(provider._names.of_installation)
        (options,) = [volume["Options"]["o"] for volume in volumes if volume["Name"] == name]

    assert count.output == b"102\n"
    assert options.split(",")[0].count("/tree") == 3
    assert snapshots.fetched == [first, second]


@pytest.mark.slow
async def test_another_host_fetches_what_it_lacks_and_nothing_twice(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    base = snapshots.add({"base": b"x"})
    first, second = (add_layer(snapshots, name, b"new") for name in ("one", "two"))
    here, there = make_provider(), make_provider(installation=f"test-{secrets.token_hex(4)}")
    try:
        await use(here, StartFiles(base, (first,)))
        await use(there, StartFiles(base))
        snapshots.fetched.clear()

        assert await use(there, StartFiles(base, (first, second))) == ["base", "one", "two"]
        assert snapshots.fetched == [first, second]
        snapshots.fetched.clear()
        assert await use(here, StartFiles(base, (first, second))) == ["base", "one", "two"]
        assert snapshots.fetched == [second]
        snapshots.fetched.clear()
        starts = [StartFiles(base, (second,)) for _ in range(3)]
        found = await asyncio.gather(*(use(here, start) for start in starts))
        assert found == [["base", "two"]] * 3
        assert snapshots.fetched == [second]  # on another chain it hides something else
    finally:
        await there.close()


@pytest.mark.slow
@pytest.mark.parametrize("quota", ["auto", "watch"])
async def test_nothing_of_a_chain_in_use_is_evicted_and_of_another_the_top_goes_first(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder, quota: str
) -> None:
    provider = make_provider(snapshot_cache_bytes=7 * MIB, disk_quota=quota)
    base = snapshots.add({"base": bytes(2 * MIB)})
    layer, top = (add_layer(snapshots, name, bytes(MIB)) for name in ("layer", "top"))
    others = [snapshots.add({"other": bytes([number]) * 2 * MIB}) for number in range(3)]
    spec = make_sandbox_spec(snapshot=base, layers=(layer,))

    async with provider.open(spec) as sandbox:
        await use(provider, StartFiles(base, (layer, top)))
        for other in others:
            await use(provider, StartFiles(other))
        assert len(await sandbox.read_bytes("/workspace/layer")) == MIB
        snapshots.fetched.clear()
        await use(provider, StartFiles(base, (layer,)))
        assert snapshots.fetched == []
        await use(provider, StartFiles(base, (layer, top)))
        assert snapshots.fetched == [top]
    await provider.discard(spec.job_id)
    await use(provider, StartFiles(others[0]))
    snapshots.fetched.clear()
    await use(provider, StartFiles(base))
    assert snapshots.fetched == []  # a layer above it went, or has to go before it


@pytest.mark.slow
async def test_a_layer_whose_unpacking_was_killed_is_unpacked_again(
    make_provider: Callable[..., DockerProvider],
    snapshots: SnapshotFolder,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    genuine = code_files

    def hanging(main_module: str = "resident") -> dict[str, bytes]:
        files = genuine(main_module)
        name = "fanout/workers/sandbox/inside/snapshots.py"
        at = b"        above: set[str] = set()\n"
        assert at in files[name]
        files[name] = files[name].replace(at, at + b"        import time; time.sleep(600)\n")
        return files

    request.addfinalizer(steward_program.steward_code.cache_clear)
    base = snapshots.add({"base": b"x"})
    start = StartFiles(base, (add_layer(snapshots, "one", b"new"),))
    with monkeypatch.context() as patch:
        patch.setattr(steward_program, "code_files", hanging)
        steward_program.steward_code.cache_clear()
        killed = make_provider()
        if (await killed.disk_quota()).kind != "image":
            pytest.skip("This engine's steward may not mount.")
        opening = asyncio.create_task(use(killed, start))

        async def hangs() -> bool:
            steward = await killed._steward()
            done = await asyncio.create_subprocess_exec(
                *("docker", "exec", steward.container, "sh", "-c", "ls -d /store/tmp/*/tree/one"),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            return await done.wait() == 0

        await eventually(hangs)
        await engine.remove_container((await killed._steward()).container)
        with contextlib.suppress(SandboxFailure):
            await opening
    steward_program.steward_code.cache_clear()

    assert await use(make_provider(), start) == ["base", "one"]


async def test_paths_that_are_too_long_for_a_mount_are_not_cut_off(
    provider: DockerProvider, snapshots: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steward_client, "_MAX_OPTION_BYTES", 900)
    base = snapshots.add({"base": b"x"})
    layers = [add_layer(snapshots, f"f{number}", b"new") for number in range(4)]

    found = await use(provider, StartFiles(base, tuple(layers)))

    assert found == ["base", "f0", "f1", "f2", "f3"]
    assert snapshots.fetched == [base, *layers]


async def test_no_layer_reaches_another_chains_files(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    one, two = (snapshots.add({name: b"x"}) for name in ("one", "two"))
    layer = add_layer(snapshots, "new", b"new")

    assert await use(provider, StartFiles(one, (layer,))) == ["new", "one"]
    assert await use(provider, StartFiles(two, (layer,))) == ["new", "two"]
    assert await use(provider, StartFiles(None, (layer,))) == ["new"]
