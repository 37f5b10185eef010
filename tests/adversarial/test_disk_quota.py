"""A job's disk limit is kept whatever its system calls, and the engine's disk keeps its reserve."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import DiskLimitExceeded, SandboxStartFailed
from fanout.workers.sandbox.protocol import Command, Sandbox, SandboxSpec
from tests.docker.conftest import MIB, changed_paths, make_sandbox_spec

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

LIMIT = 64 * MIB


def spec_with(**limits: Any) -> SandboxSpec:
    spec = make_sandbox_spec()
    return make_sandbox_spec(limits=spec.limits.model_copy(update=limits))


async def run_python(sandbox: Sandbox, code: str) -> str:
    result = await sandbox.run(Command(argv=["python3", "-c", code]))
    assert result.exit_code == 0, result.output
    return result.output.decode()


UNLINKED = f"""
import os
written, kept = 0, []
try:
    for _ in range(100):
        file = os.open("gone", os.O_CREAT | os.O_WRONLY)
        os.unlink("gone")
        kept.append(file)
        for _ in range(15):
            written += os.write(file, bytes({MIB}))
except OSError as error:
    print(error.errno, written)
"""
ALLOCATED = f"""
import os
taken = 0
try:
    for number in range(100):
        file = os.open(f"file{{number}}", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(file, 0, 8 * {MIB})
        taken += 8 * {MIB}
except OSError as error:
    print(error.errno, taken)
"""
MANY = """
import os
try:
    for number in range(1_000_000):
        os.close(os.open(f"{number}", os.O_CREAT))
except OSError as error:
    print(error.errno, number)
"""


async def test_files_that_are_unlinked_while_open_count(provider: DockerProvider) -> None:
    async with provider.open(spec_with(disk_bytes=LIMIT)) as sandbox:
        error, written = map(int, (await run_python(sandbox, UNLINKED)).split())

        assert error == 28  # ENOSPC
        assert 0.9 * LIMIT < written < 1.1 * LIMIT


async def test_space_that_is_allocated_and_not_written_counts(provider: DockerProvider) -> None:
    async with provider.open(spec_with(disk_bytes=LIMIT)) as sandbox:
        error, taken = map(int, (await run_python(sandbox, ALLOCATED)).split())

        assert error == 28
        assert taken <= 1.1 * LIMIT


async def test_a_million_empty_files_meet_a_limit(provider: DockerProvider) -> None:
    async with provider.open(spec_with(disk_bytes=LIMIT)) as sandbox:
        error, number = map(int, (await run_python(sandbox, MANY)).split())

        assert error == 28
        assert number <= LIMIT / 1024


async def test_a_full_disk_is_an_ordinary_error_and_the_sandbox_goes_on(
    provider: DockerProvider,
) -> None:
    async with provider.open(spec_with(disk_bytes=LIMIT)) as sandbox:
        await run_python(sandbox, ALLOCATED)
        await run_python(sandbox, "import os; [os.unlink(name) for name in os.listdir('.')]")
        after = await sandbox.run(Command(argv="echo fine > note; cat note"))

        assert after.output == b"fine\n"
        assert await changed_paths(sandbox) == [("note", "added")]


async def test_a_job_finds_its_files_again_on_its_limited_disk(
    make_provider: Callable[..., DockerProvider],
) -> None:
    spec = spec_with(disk_bytes=LIMIT)
    first, second = make_provider(), make_provider()
    async with first.open(spec) as sandbox:
        await sandbox.run(Command(argv="echo kept > note"))
        files_id = sandbox.files_id
    await first.close()
    async with second.open(spec) as sandbox:
        error, written = map(int, (await run_python(sandbox, UNLINKED)).split())

        assert sandbox.files_id == files_id
        assert await sandbox.read_bytes("/workspace/note") == b"kept\n"
        assert error == 28
        assert written < 1.1 * LIMIT
    await second.discard(spec.job_id)


async def test_the_quota_in_force_is_told(make_provider: Callable[..., DockerProvider]) -> None:
    kept, watched = make_provider(), make_provider(disk_quota="watch")

    assert (await kept.disk_quota()).kind == "image"
    assert (await watched.disk_quota()).kind == "watch"
    assert "FANOUT_SANDBOX__DISK_QUOTA" in (await watched.disk_quota()).reason


async def test_no_sandbox_is_opened_while_the_disk_is_below_its_reserve(
    make_provider: Callable[..., DockerProvider],
) -> None:
    provider = make_provider(disk_reserve_bytes=1 << 60)

    with pytest.raises(SandboxStartFailed, match=r"reserve.*FANOUT_SANDBOX__DISK_RESERVE_BYTES"):
        async with provider.open(make_sandbox_spec()):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("quota", ["image", "watch"])
async def test_a_job_that_writes_into_the_reserve_is_stopped(
    make_provider: Callable[..., DockerProvider], quota: str
) -> None:
    status = os.statvfs("/var/lib/docker")
    free = status.f_bavail * status.f_frsize
    reserve = free - 1024 * MIB
    provider = make_provider(disk_quota=quota, disk_reserve_bytes=reserve)
    write = (
        f"import os\nfile = open('big', 'wb')\nfor _ in range(4096): file.write(os.urandom({MIB}))"
    )

    async with provider.open(spec_with(disk_bytes=8192 * MIB)) as sandbox:
        with pytest.raises(DiskLimitExceeded, match="reserve"):
            await sandbox.run(Command(argv=["python3", "-c", write]))
        status = os.statvfs("/var/lib/docker")

        assert status.f_bavail * status.f_frsize > reserve
