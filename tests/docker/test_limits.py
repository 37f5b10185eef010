from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import DiskLimitExceeded
from fanout.workers.sandbox.protocol import Command, SandboxSpec
from tests.docker import conftest
from tests.docker.conftest import MIB, changed_paths, make_sandbox_spec

pytestmark = conftest.ON_SHARED_PROVIDER
provider = conftest.provider_of_session


def spec_with(**limits: Any) -> SandboxSpec:
    spec = make_sandbox_spec()
    return make_sandbox_spec(limits=spec.limits.model_copy(update=limits))


async def test_a_command_that_takes_too_much_memory_is_killed_and_the_sandbox_goes_on(
    provider: DockerProvider,
) -> None:
    async with provider.open(spec_with(memory_bytes=128 * MIB)) as sandbox:
        greedy = await sandbox.run(Command(argv=["python3", "-c", "x = 'a' * 10**9"]))
        modest = await sandbox.run(Command(argv="echo fine"))

        assert greedy.exit_code != 0
        assert greedy.out_of_memory
        assert modest.output == b"fine\n"
        assert not modest.out_of_memory


async def test_a_full_tmpfs_is_an_ordinary_error_and_kills_nothing(
    provider: DockerProvider,
) -> None:
    fill = "for folder in /tmp $HOME /dev/shm; do head -c 1G /dev/zero > $folder/big; done; true"
    async with provider.open(spec_with(memory_bytes=128 * MIB, disk_bytes=2048 * MIB)) as sandbox:
        result = await sandbox.run(Command(argv=fill))

        assert result.output.count(b"No space left on device") == 3
        assert not result.out_of_memory


async def test_files_without_content_cannot_fill_the_memory_either(
    provider: DockerProvider,
) -> None:
    code = "for number in range(1_000_000): open(f'/tmp/{number}', 'w').close()"
    async with provider.open(spec_with(memory_bytes=128 * MIB)) as sandbox:
        result = await sandbox.run(Command(argv=["python3", "-c", code]))

        assert b"No space left on device" in result.output
        assert not result.out_of_memory


async def test_a_fork_bomb_is_bounded_and_leaves_nothing(provider: DockerProvider) -> None:
    async with provider.open(spec_with(pids=64)) as sandbox:
        bomb = await sandbox.run(
            Command(argv=["bash", "-c", "b() { b | b & b; }; b; sleep 60"], timeout_seconds=2)
        )
        after = await sandbox.run(Command(argv="ls -d /proc/[0-9]* | wc -l"))

        assert bomb.timed_out or bomb.exit_code != 0
        assert int(after.output) <= 5


async def test_a_fork_bomb_in_the_background_ends_when_the_next_command_finds_no_room(
    provider: DockerProvider,
) -> None:
    code = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        open("/tmp/full", "w").close()
        time.sleep(0.01)
"""
    async with provider.open(spec_with(pids=64)) as sandbox:
        await sandbox.write_bytes("/tmp/bomb.py", code.encode())
        wait = "until [ -e /tmp/full ]; do :; done"
        bomb = await sandbox.run(Command(argv=f"python3 /tmp/bomb.py & {wait}"))
        after = await sandbox.run(Command(argv="echo alive; ls -d /proc/[0-9]* | wc -l"))

        assert bomb.left_running
        said, alive, count = after.output.decode().splitlines()
        assert "too many processes" in said
        assert (after.exit_code, alive) == (0, "alive")
        assert int(count) <= 5


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.slow
async def test_where_disks_are_watched_a_job_that_writes_too_much_is_ended_and_its_changes_stay(
    make_provider: Callable[..., DockerProvider],
) -> None:
    provider = make_provider(disk_quota="watch")
    write = "for n in 1 2 3 4 5 6; do head -c 5M /dev/zero > $n; done; sleep 600"
    async with provider.open(spec_with(disk_bytes=16 * MIB)) as sandbox:
        with pytest.raises(DiskLimitExceeded, match=r"limit \(disk_bytes\) is 16777216"):
            await sandbox.run(Command(argv=write))
        with pytest.raises(DiskLimitExceeded):
            await sandbox.read_bytes("/workspace/1")
        paths = [path for path, _ in await changed_paths(sandbox)]

        assert paths == ["1", "2", "3", "4", "5", "6"]


async def test_one_file_cannot_grow_over_the_disk_limit(provider: DockerProvider) -> None:
    async with provider.open(spec_with(disk_bytes=8 * MIB)) as sandbox:
        result = await sandbox.run(
            Command(argv="python3 -c \"open('big', 'wb').write(bytes(9 * 2**20))\"")
        )

        assert b"File too large" in result.output


async def test_open_files_and_core_dumps_are_bounded(provider: DockerProvider) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        result = await sandbox.run(Command(argv="ulimit -c; ulimit -n"))

        assert result.output == b"0\n8192\n"


async def test_a_network_that_names_no_host_is_refused_and_not_left_out(
    provider: DockerProvider,
) -> None:
    with pytest.raises(InvalidJob, match="network"):
        async with provider.open(spec_with(network=("https://pypi.example/simple",))):
            pass
