"""No other user of the machine reads a file of ours, whatever the umask is."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.client.state_folder import EmbeddedRecord, StateFolder
from fanout.orchestrator.embedded.child_process import ChildProcess
from fanout.orchestrator.embedded.redis_server import RedisServer, find_redis_server
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import SandboxSpec

pytestmark = pytest.mark.blocks_loop(
    "children are started and stopped in a loop that has nothing else to do yet"
)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda umask: f"umask {umask:03o}", autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(folder: Path, others: int = 0o077) -> list[str]:
    """What others can reach in a folder: a private folder hides what is in it."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        above = [parent for parent in path.parents if parent.is_relative_to(folder)]
        is_hidden = any(not stat.S_IMODE(parent.stat().st_mode) & others for parent in above)
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & others and not is_hidden:
            found.append(f"{path.relative_to(folder)} {stat.S_IMODE(path.stat().st_mode):o}")
    return found


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def open_files_in(folder: Path) -> list[str]:
    return [path.name for path in files_in(folder) if stat.S_IMODE(path.stat().st_mode) & 0o077]


def modes_in(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def snapshot_in(folder: Path, tmp_path: Path, url: str) -> str:
    (tmp_path / "root").mkdir(exist_ok=True)
    (tmp_path / "root/a").write_text("1")
    return await Workspace(tmp_path / "root").snapshot(BlobStore(url, cache=folder / "cache"))


@pytest.mark.parametrize("exists", [False, True], ids=["a new folder", "a folder that exists"])
async def test_a_snapshot_is_for_its_owner_only(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "state" / "blobs"
    if exists:
        folder.mkdir(parents=True)
        folder.chmod(0o755)

    blob_id = await snapshot_in(tmp_path / "state", tmp_path, str(folder))

    assert stat.S_IMODE((folder / blob_id[:2] / blob_id).stat().st_mode) == 0o600
    assert [stat.S_IMODE(sub.stat().st_mode) for sub in folder.iterdir()] == [0o700, 0o700]


async def test_a_copy_of_a_remote_blob_is_for_its_owner_only(tmp_path: Path) -> None:
    await snapshot_in(tmp_path / "x", tmp_path, "memory://modes")

    assert open_to_others(tmp_path / "x") == []


async def test_what_an_earlier_release_left_open_is_closed(tmp_path: Path) -> None:
    old = tmp_path / "blobs" / "ab" / ("ab" * 32)
    old.parent.mkdir(parents=True)
    old.write_text("an old snapshot")
    old.parent.chmod(0o755)

    await snapshot_in(tmp_path, tmp_path, str(tmp_path / "blobs"))

    assert stat.S_IMODE(old.parent.stat().st_mode) == 0o700


async def test_a_folder_that_a_group_shares_is_for_the_group_and_never_for_everybody(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2770)

    blob_id = await snapshot_in(tmp_path, tmp_path, str(folder))

    assert stat.S_IMODE((folder / blob_id[:2] / blob_id).stat().st_mode) == 0o660
    assert {stat.S_IMODE(sub.stat().st_mode) for sub in folder.iterdir()} == {0o2770}
    assert open_to_others(folder, 0o007) == []


async def test_the_state_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "a" / "state")
    await asyncio.to_thread(state.prepare)
    record = EmbeddedRecord(
        redis_url="redis://", blobs_url="x", redis_pid=None, worker_pid=None, kept=False
    )
    await asyncio.to_thread(state.write_record, record)
    async with state.locked():
        (await state.open_users()).close()
    process = ChildProcess(state.path, "worker")
    await asyncio.to_thread(process.start, ["/bin/echo", "a secret"], env={}, outlives_parent=False)
    await process.stop(5)

    assert await asyncio.to_thread(open_to_others, state.path) == []
    assert await asyncio.to_thread(modes_in, state.path) == {0o600, 0o700}


@pytest.mark.redis
@pytest.mark.skipif(find_redis_server() is None, reason="needs redis-server")
async def test_redis_writes_for_its_owner_only(tmp_path: Path) -> None:
    await asyncio.to_thread(tmp_path.chmod, 0o755)
    server = RedisServer(tmp_path)
    await server.start(outlives_parent=False)
    await server.stop()

    assert any("append" in path.name for path in await asyncio.to_thread(files_in, tmp_path))
    assert await asyncio.to_thread(open_files_in, tmp_path) == []


async def test_a_local_sandbox_is_for_its_owner_only(tmp_path: Path) -> None:
    blobs = BlobStore(str(tmp_path / "blobs"))
    blob_id = await snapshot_in(tmp_path, tmp_path, blobs.url)
    limits = Limits(
        timeout_seconds=60, cpus=1, memory_bytes=2**30, pids=50, disk_bytes=2**30, network="none"
    )
    spec = SandboxSpec(
        job_id=new_job_id(), attempt=1, image="none", limits=limits, snapshot=blob_id
    )
    jobs = tmp_path / "local" / "jobs"
    await asyncio.to_thread(jobs.parent.mkdir, mode=0o700)
    await asyncio.to_thread(jobs.mkdir)
    await asyncio.to_thread(jobs.chmod, 0o755)  # as an earlier worker may have left it
    provider = await asyncio.to_thread(LocalProvider, blobs.fetch, tmp_path / "local", "modes")
    async with provider.open(spec):
        assert open_to_others(tmp_path / "local") == []
        assert open_to_others(jobs) == []
    await provider.discard(spec.job_id)
    await provider.close()
