"""What every sandbox provider must do: one suite, run on each of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from fanout.orchestrator.deep_agent.backends.protocol import Execution
from fanout.orchestrator.jobs.changes import ChangeBundle, Changes
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import DiskLimitExceeded, SnapshotUnusable
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.local.sandbox import LocalSandbox
from fanout.workers.sandbox.protocol import (
    WORKSPACE,
    Command,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    nobody,
)
from tests.conftest import missing
from tests.contract.truth_set import CASES, Case, make_snapshot_tree
from tests.waits import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024**2
LIMITS = Limits(
    timeout_seconds=60,
    cpus=1,
    memory_bytes=512 * MIB,
    pids=200,
    disk_bytes=200 * MIB,
    network="none",
)


@dataclass
class Bench:
    """A provider under test, and the snapshots that it can fetch."""

    provider: SandboxProvider
    folder: Path

    def add_snapshot(self, fill: Callable[[tarfile.TarFile], None]) -> str:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            fill(archive)
        name = hashlib.sha256(buffer.getvalue()).hexdigest()
        (self.folder / name).write_bytes(buffer.getvalue())
        return name

    def open(
        self,
        snapshot: str | None = None,
        *,
        job: str = "",
        attempt: int = 1,
        limits: Limits = LIMITS,
    ) -> AbstractAsyncContextManager[Sandbox]:
        return self.provider.open(
            SandboxSpec(
                job_id=job or new_job_id(),
                attempt=attempt,
                image="fanout/python",
                limits=limits,
                snapshot=snapshot,
            )
        )


async def has_disks(provider: SandboxProvider) -> bool:
    """Whether the kernel keeps each job's disk limit."""
    return isinstance(provider, DockerProvider) and (await provider.disk_quota()).kind == "image"


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["local", pytest.param("docker", marks=pytest.mark.docker)],
)
async def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("snapshots")

    async def fetch(name: str) -> Path:
        return folder / name

    installation = f"contract-{secrets.token_hex(4)}"
    provider: SandboxProvider
    if request.param == "local":
        provider = LocalProvider(fetch, tmp_path_factory.mktemp("local"), installation)
    else:
        provider = await _docker_provider(fetch, installation)
    yield Bench(provider, folder)
    await provider.reap(nobody)
    await provider.close()


async def _docker_provider(fetch: Callable[..., object], installation: str) -> SandboxProvider:
    provider = DockerProvider(fetch, installation=installation, worker="contract")
    try:
        await provider.probe("fanout/python")
    except SandboxFailure as failure:
        missing(str(failure))
    return provider


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(bench: Bench) -> AsyncIterator[Sandbox]:
    """A sandbox for tests that leave each other alone."""
    async with bench.open() as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(bench: Bench) -> AsyncIterator[Sandbox]:
    async with bench.open() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def sample(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> str:
    tree = tmp_path_factory.mktemp("sample")
    make_snapshot_tree(tree)
    return bench.add_snapshot(lambda archive: archive.add(tree, arcname=".", filter=_rooted))


def _rooted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.name = member.name.removeprefix("./")
    return member


async def sh(
    sandbox: Sandbox, script: str, timeout_seconds: float = 30, **options: object
) -> Execution:
    return await sandbox.run(Command(argv=script, timeout_seconds=timeout_seconds, **options))


async def count(sandbox: Sandbox, pattern: str) -> int:
    """How many live processes have the pattern in their command line."""
    script = (
        "n=0; for d in /proc/[0-9]*; do "
        f"if tr '\\0' ' ' < $d/cmdline 2>/dev/null | grep -q '^{pattern}'; then n=$((n+1)); fi; done; echo $n"
    )
    return int((await sh(sandbox, script, merge_stderr=False)).output)


async def gone(sandbox: Sandbox, pattern: str) -> bool:
    """Wait until no such process is left."""
    return not await eventually(lambda: count(sandbox, pattern), lambda found: not found)


async def begun(sandbox: Sandbox, pattern: str) -> None:
    """Wait for such a process: what a shell starts in the background is a copy of it at first."""
    await eventually(lambda: count(sandbox, pattern))


def unique_sleep() -> str:
    """A sleep that no other test starts; found by its arguments."""
    return f"sleep 100{secrets.randbelow(10**8):08d}"


# --- commands
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 42, 255])
async def test_a_command_gives_its_exit_code(shared: Sandbox, code: int) -> None:
    assert (await sh(shared, f"exit {code}")).exit_code == code


async def test_a_killed_command_gives_its_signal(shared: Sandbox) -> None:
    assert (await sh(shared, "kill -KILL $$")).exit_code == -9
    assert (await sh(shared, "kill -TERM $$")).exit_code == -15


async def test_a_command_that_is_not_there_gives_127(shared: Sandbox) -> None:
    result = await shared.run(Command(argv=["no-such-program"]))

    assert result.exit_code == 127
    assert b"no-such-program" in result.output


@pytest.mark.parametrize("argv", [[], ["a\0b"], ["/no/such/program"]])
async def test_a_command_that_cannot_be_started_gives_127(shared: Sandbox, argv: list[str]) -> None:
    assert (await shared.run(Command(argv=argv))).exit_code == 127


async def test_a_folder_that_is_not_there_gives_127(shared: Sandbox) -> None:
    assert (await shared.run(Command(argv=["true"], cwd="/workspace/not-there"))).exit_code == 127


async def test_an_argv_is_passed_as_it_is(shared: Sandbox) -> None:
    words = ["a b", "$HOME", "'", "*", "", "ü", "\n"]

    result = await shared.run(Command(argv=["printf", "%s|", *words]))

    assert result.output == ("|".join(words) + "|").encode()


async def test_a_command_starts_in_the_workspace(shared: Sandbox) -> None:
    await sh(shared, "mkdir -p inner; echo here > inner/file")

    assert (await sh(shared, "cat inner/file")).output == b"here\n"
    assert (await sh(shared, "cat file", cwd=f"{WORKSPACE}/inner")).output == b"here\n"


async def test_a_path_means_the_same_to_the_shell_and_to_the_file_operations(
    shared: Sandbox,
) -> None:
    await shared.write_bytes(f"{WORKSPACE}/same", b"same")
    await shared.write_bytes("/tmp/same", b"tmp")

    result = await sh(shared, f"cat {WORKSPACE}/same /tmp/same; echo more > {WORKSPACE}/from-shell")

    if _paths_are_shared(shared):
        assert result.output == b"sametmp"
        assert await shared.read_bytes(f"{WORKSPACE}/from-shell") == b"more\n"


def _paths_are_shared(sandbox: Sandbox) -> bool:
    """Not for the local provider where commands get no mount namespace, say without root."""
    return not isinstance(sandbox, LocalSandbox) or sandbox._folder.bound


async def test_the_environment_is_clean_and_can_be_added_to(
    shared: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "x")

    result = await sh(
        shared, "env; echo home=$HOME; test -w $HOME && echo writable", env={"MINE": "yes"}
    )

    assert b"MINE=yes" in result.output
    assert b"SECRET_OF_THE_WORKER" not in result.output
    assert b"REDIS" not in result.output
    assert b"writable" in result.output


@pytest.mark.parametrize("size", [0, 10, 100_000, 5 * MIB])
async def test_standard_input_arrives_whole(shared: Sandbox, size: int) -> None:
    data = os.urandom(size)

    result = await sh(shared, "sha256sum", stdin=data)

    assert result.output.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_both_outputs_come_in_their_order_or_apart(shared: Sandbox) -> None:
    script = "echo one; echo two >&2; echo three"

    merged = await sh(shared, script)
    apart = await sh(shared, script, merge_stderr=False)

    assert merged.output == b"one\ntwo\nthree\n"
    assert merged.error_output == b""
    assert (apart.output, apart.error_output) == (b"one\nthree\n", b"two\n")


async def test_output_within_the_limit_is_whole(shared: Sandbox) -> None:
    result = await sh(shared, "head -c 1000 /dev/zero | tr '\\0' x", max_output_bytes=1000)

    assert result.output == b"x" * 1000
    assert not result.truncated


async def test_of_too_much_output_head_and_tail_are_kept(shared: Sandbox) -> None:
    result = await sh(shared, "echo BEGIN; seq 100000; echo END", max_output_bytes=2000)

    assert len(result.output) == 2000
    assert result.output.startswith(b"BEGIN\n1\n2\n")
    assert result.output.endswith(b"99999\n100000\nEND\n")
    assert result.truncated
    assert result.total_bytes == 588895 + 10


@pytest.mark.timeout(300)
async def test_a_flood_of_output_stays_small_here(shared: Sandbox) -> None:
    before = _resident_kilobytes()

    result = await sh(shared, "head -c 300000000 /dev/zero", timeout_seconds=60)

    assert result.total_bytes == 300_000_000
    assert _resident_kilobytes() - before < 20_000


def _resident_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


async def test_output_is_streamed_while_the_command_runs(shared: Sandbox) -> None:
    parts: list[bytes] = []
    has_come = asyncio.Event()

    async def sink(part: bytes) -> None:
        parts.append(part)
        has_come.set()

    script = "rm -f heard; echo one; until [ -e heard ]; do sleep 0.05; done; echo two"
    running = asyncio.create_task(shared.run(Command(argv=script, timeout_seconds=60), sink))
    async with asyncio.timeout(50):
        await has_come.wait()
    await shared.write_bytes(f"{WORKSPACE}/heard", b"")
    result = await running

    assert b"".join(parts) == result.output == b"one\ntwo\n"


async def test_streamed_output_is_limited_like_the_result(shared: Sandbox) -> None:
    parts: list[bytes] = []

    async def sink(part: bytes) -> None:
        parts.append(part)

    await shared.run(Command(argv="seq 100000", max_output_bytes=1000), sink)

    assert sum(map(len, parts)) <= 1000
    assert parts[0].startswith(b"1\n2\n")


async def test_a_slow_sink_gets_everything(shared: Sandbox) -> None:
    parts: list[bytes] = []

    async def sink(part: bytes) -> None:
        await asyncio.sleep(0.01)
        parts.append(part)

    result = await shared.run(Command(argv="seq 20000", max_output_bytes=MIB), sink)

    assert b"".join(parts) == result.output
    assert not result.truncated


async def test_a_sink_that_fails_ends_the_command(shared: Sandbox) -> None:
    sleep = unique_sleep()

    async def sink(_part: bytes) -> None:
        raise OSError("disk full here")

    with pytest.raises(OSError, match="disk full here"):
        await shared.run(Command(argv=f"echo x; {sleep}"), sink)

    assert await gone(shared, sleep)


async def test_many_commands_run_at_once(shared: Sandbox) -> None:
    await sh(shared, "rm -rf together; mkdir together")
    wait = "touch together/{0}; until [ $(ls together | wc -l) = 20 ]; do sleep 0.3; done; echo {0}"

    results = await asyncio.gather(
        *(sh(shared, wait.format(number), timeout_seconds=60) for number in range(20))
    )

    assert [result.output for result in results] == [b"%d\n" % number for number in range(20)]


# --- time
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("{sleep}", id="a sleep"),
        pytest.param("{sleep} & {sleep} & wait", id="children"),
        pytest.param("trap '' TERM; while :; do :; done", id="deaf to SIGTERM"),
        pytest.param(
            "setsid {sleep} & setsid sh -c \"trap '' TERM; {sleep}; {sleep}\" & {sleep}",
            id="sessions",
        ),
        pytest.param("(setsid sh -c '{sleep} &' &); {sleep}", id="a double fork"),
        pytest.param("(env -i setsid sh -c '/bin/{sleep} &' &); {sleep}", id="no environment left"),
        pytest.param(
            "(setsid sh -c 'exec >/dev/null 2>&1 </dev/null; {sleep}' &); {sleep}", id="silent"
        ),
    ],
)
async def test_when_the_time_is_over_nothing_is_left(sandbox: Sandbox, script: str) -> None:
    sleep = unique_sleep()

    result = await sh(
        sandbox, "echo begun; " + script.replace("{sleep}", sleep), timeout_seconds=1.5
    )

    assert result.timed_out
    assert result.output.startswith(b"begun\n")
    assert await gone(sandbox, f"\\(/bin/\\)\\?{sleep}")
    assert (await sh(sandbox, "echo usable")).output == b"usable\n"


@pytest.mark.timeout(300)
async def test_a_fork_bomb_is_ended(bench: Bench) -> None:
    async with bench.open(limits=LIMITS.model_copy(update={"pids": 100})) as sandbox:
        if sandbox.kind == "local":
            pytest.skip("has no limit of processes: a bomb would hit this machine")

        result = await sh(
            sandbox, "b() { setsid sleep 1000 & b & b; }; b & exec sleep 1000", timeout_seconds=1
        )

        assert result.timed_out
        assert (await sh(sandbox, "echo usable")).output == b"usable\n"
        assert await gone(sandbox, "sleep 1000")


async def test_a_process_in_the_background_does_not_hold_the_call_and_lives_on(
    sandbox: Sandbox,
) -> None:
    sleep = unique_sleep()

    result = await sh(sandbox, f"{sleep} & echo started")

    assert result.output == b"started\n"
    assert not result.timed_out
    await begun(sandbox, sleep)
    assert await count(sandbox, sleep) == 1


async def test_a_process_in_the_background_writes_on_into_a_file_of_the_next_command(
    sandbox: Sandbox,
) -> None:
    script = "i=0; until [ -e stop ]; do echo tick $((i += 1)); sleep 0.05; done; echo ok > end"
    first = await sh(sandbox, f"({script}) & echo started", keep_output=True)

    left = first.left_running
    assert b"started\n" in first.output
    assert left is not None
    assert "echo tick $((i += 1))" in left.processes[0].command_line
    assert left.total >= 1
    log = f"timeout 20 grep -q -m 1 'tick 2.' <(tail -c +1 -f {left.output_path}) && touch stop"
    assert (await sh(sandbox, log)).exit_code == 0
    assert (await sh(sandbox, "until [ -e end ]; do sleep 0.05; done; cat end")).output == b"ok\n"
    written = await sandbox.read_bytes(left.output_path, 1000)
    assert written.startswith(b"tick ")


async def test_what_a_process_in_the_background_writes_is_bounded_and_holds_it_up_never(
    sandbox: Sandbox,
) -> None:
    flood = "seq 1 1000000; echo last; echo ok > end"  # 7 MB, far more than the file keeps
    left = (await sh(sandbox, f"(sleep 0.2; {flood}) &", keep_output=True)).left_running

    assert left is not None
    assert (await sh(sandbox, "until [ -e end ]; do sleep 0.05; done")).exit_code == 0
    end = f"until tail -n 1 {left.output_path} | grep -q last; do sleep 0.05; done"
    assert (await sh(sandbox, end)).exit_code == 0
    seen = await sandbox.read_bytes(left.output_path)
    assert seen.startswith(b"1\n2\n3\n")
    assert b"is left out here" in seen
    assert seen.endswith(b"999999\n1000000\nlast\n")
    assert len(seen) <= 2 * MIB + 1000


async def test_a_process_that_was_sent_elsewhere_is_named_too_and_ends_with_kill(
    sandbox: Sandbox,
) -> None:
    sleep = unique_sleep()
    left = (await sh(sandbox, f"{sleep} > /dev/null 2>&1 & sleep 0.3")).left_running

    assert left is not None
    assert [process.command_line for process in left.processes] == [sleep]
    assert left.output_path == ""
    stopped = await sh(sandbox, f"kill {left.processes[0].pid}")
    assert stopped.exit_code == 0
    assert await gone(sandbox, sleep)
    assert (await sh(sandbox, "true")).left_running is None


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("{sleep} &", id="its child"),
        pytest.param("setsid {sleep} > /dev/null 2>&1 &", id="a daemon"),
        pytest.param("env -i setsid /bin/{sleep} > /dev/null 2>&1 &", id="a daemon without a mark"),
    ],
)
async def test_a_timeout_spares_what_an_earlier_command_left_running(
    sandbox: Sandbox, start: str
) -> None:
    kept, killed = unique_sleep(), unique_sleep()
    await sh(sandbox, start.replace("{sleep}", kept))
    pattern = f"\\(/bin/\\)\\?{kept}"
    await begun(sandbox, pattern)

    script = f"{killed} & (env -i setsid sh -c '/bin/{killed} &' &); {killed}"
    result = await sh(sandbox, script, timeout_seconds=0.7)

    assert result.timed_out
    assert result.left_running is None
    assert await gone(sandbox, f"\\(/bin/\\)\\?{killed}")
    assert await count(sandbox, pattern) == 1


async def test_a_bomb_is_ended_beside_what_an_earlier_command_left_running(bench: Bench) -> None:
    async with bench.open(limits=LIMITS.model_copy(update={"pids": 100})) as sandbox:
        if sandbox.kind == "local":
            pytest.skip("has no limit of processes: a bomb would hit this machine")
        kept = unique_sleep()
        await sh(sandbox, f"{kept} > /dev/null 2>&1 &")

        bomb = "b() { setsid sleep 1000 & b & b; }; b & exec sleep 1000"
        result = await sh(sandbox, bomb, timeout_seconds=1)

        assert result.timed_out
        assert await gone(sandbox, "sleep 1000")
        assert await count(sandbox, kept) == 1


async def test_a_job_that_ends_takes_its_background_processes_with_it(bench: Bench) -> None:
    sleep = unique_sleep()
    async with bench.open() as sandbox:
        await sh(sandbox, f"while echo tick; do {sleep}; done &")
        await begun(sandbox, sleep)

    async with bench.open() as another:
        assert await gone(another, sleep)


@pytest.mark.parametrize(
    "script",
    [
        "mkdir -p src/{a,b} && [ -d src/a ]",
        "[[ a == a ]]",
        "set -euo pipefail; true | true",
        "diff <(echo a) <(echo a)",
        "echo 'V=1' > x.sh; source ./x.sh; [ $V = 1 ]",
        "a=(1 2 3); ((${#a[@]} == 3))",
        'shopt -q login_shell && exit 1; [ -z "${PS1-}" ]',
    ],
)
async def test_commands_are_for_bash(shared: Sandbox, script: str) -> None:
    result = await sh(shared, script)
    assert (result.exit_code, result.output) == (0, b"")


async def test_no_file_and_no_variable_of_the_job_changes_how_its_shell_begins(
    sandbox: Sandbox,
) -> None:
    await sh(sandbox, "for f in .bashrc .bash_profile .profile; do echo echo read > ~/$f; done")

    assert (await sh(sandbox, "echo mine")).output == b"mine\n"
    assert (await sh(sandbox, "echo ${BASH_ENV-none}")).output == b"none\n"


async def test_a_timeout_spares_the_commands_beside_it(sandbox: Sandbox) -> None:
    beside = asyncio.create_task(sh(sandbox, "sleep 3; echo survived"))

    result = await sh(sandbox, "trap '' TERM; while :; do :; done", timeout_seconds=0.3)

    assert result.timed_out
    assert (await beside).output == b"survived\n"


async def test_a_cancelled_caller_leaves_no_process(sandbox: Sandbox) -> None:
    sleep = unique_sleep()
    running = asyncio.create_task(sh(sandbox, f"(setsid {sleep} &); {sleep}"))
    await begun(sandbox, sleep)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await gone(sandbox, sleep)
    assert (await sh(sandbox, "echo usable")).output == b"usable\n"


async def test_commands_are_cancelled_one_by_one(sandbox: Sandbox) -> None:
    kept = asyncio.create_task(sh(sandbox, "sleep 1.5; echo kept"))
    sleeps = [unique_sleep() for _ in range(5)]
    dropped = [asyncio.create_task(sh(sandbox, sleep)) for sleep in sleeps]
    for sleep in sleeps:
        await begun(sandbox, sleep)

    for task in dropped:
        task.cancel()
    await asyncio.gather(*dropped, return_exceptions=True)

    assert (await kept).output == b"kept\n"


# --- files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, MIB, MIB + 1, 5 * MIB + 7])
async def test_what_is_written_is_read(shared: Sandbox, size: int) -> None:
    path, data = f"{WORKSPACE}/sizes/{size}", os.urandom(size)

    await shared.write_bytes(path, data)

    assert await shared.read_bytes(path) == data
    assert (await shared.lstat(path)).size_bytes == size


async def test_a_part_of_a_file_is_read(shared: Sandbox) -> None:
    path = f"{WORKSPACE}/part"
    await shared.write_bytes(path, bytes(range(256)) * 8192)

    assert await shared.read_bytes(path, 4, offset=3) == bytes([3, 4, 5, 6])
    assert await shared.read_bytes(path, offset=2 * MIB - 2) == bytes([254, 255])
    assert await shared.read_bytes(path, offset=2 * MIB + 5) == b""
    assert len(await shared.read_bytes(path, MIB + 5, offset=1)) == MIB + 5


async def test_an_overwritten_file_keeps_its_mode(shared: Sandbox) -> None:
    path = f"{WORKSPACE}/tool.sh"
    await shared.write_bytes(path, b"#!/bin/sh\necho 1\n", mode=0o755)

    await shared.write_bytes(path, b"#!/bin/sh\necho 2\n")

    assert (await shared.lstat(path)).mode == 0o755
    assert (await sh(shared, "./tool.sh")).output == b"2\n"


async def test_a_write_goes_through_a_link_and_leaves_it(shared: Sandbox) -> None:
    await sh(shared, "echo old > linked; ln -sf linked link")

    await shared.write_bytes(f"{WORKSPACE}/link", b"new")

    assert await shared.read_bytes(f"{WORKSPACE}/linked") == b"new"
    assert (await shared.lstat(f"{WORKSPACE}/link")).kind == "symlink"


async def test_readers_never_see_half_a_file(shared: Sandbox) -> None:
    path = f"{WORKSPACE}/whole"
    await shared.write_bytes(path, b"a" * 200_000)

    async def rewrite() -> None:
        for letter in b"abcdefghij":
            await shared.write_bytes(path, bytes([letter]) * 200_000)

    writing = asyncio.create_task(rewrite())
    while not writing.done():
        content = await shared.read_bytes(path)
        assert len(content) == 200_000
        assert len(set(content)) == 1
    await writing


async def test_of_many_that_create_a_file_one_succeeds(shared: Sandbox) -> None:
    path = f"{WORKSPACE}/created"

    results = await asyncio.gather(
        *(
            shared.write_bytes(path, b"%d" % number * 1000, create_only=True)
            for number in range(10)
        ),
        return_exceptions=True,
    )

    assert results.count(None) == 1
    assert sum(isinstance(result, FileExistsError) for result in results) == 9
    assert await shared.read_bytes(path) == b"%d" % results.index(None) * 1000


async def test_nothing_is_created_over_a_dangling_link(shared: Sandbox) -> None:
    await sh(shared, "ln -sf nowhere dangling")

    with pytest.raises(FileExistsError):
        await shared.write_bytes(f"{WORKSPACE}/dangling", b"x", create_only=True)


async def test_a_failed_write_leaves_no_trace(sandbox: Sandbox) -> None:
    await sandbox.write_bytes(f"{WORKSPACE}/there", b"x")

    for size in (10, 2 * MIB):
        with pytest.raises(FileExistsError):
            await sandbox.write_bytes(f"{WORKSPACE}/there", b"y" * size, create_only=True)

    assert [entry.path for entry in await sandbox.list(WORKSPACE)] == [f"{WORKSPACE}/there"]


@pytest.mark.parametrize(
    ("operation", "path", "error"),
    [
        ("read", "missing", FileNotFoundError),
        ("read", "folder", IsADirectoryError),
        ("read", "file/below", NotADirectoryError),
        ("read", "fifo", OSError),
        ("read", "circle", OSError),
        ("read", "nul\0", OSError),
        ("read", "\ud800", OSError),
        ("read", "x" * 300, OSError),
        ("stat", "missing", FileNotFoundError),
        ("list", "file", NotADirectoryError),
        ("list", "missing", FileNotFoundError),
        ("walk", "missing", FileNotFoundError),
        ("walk", "file", NotADirectoryError),
        ("grep", "missing", FileNotFoundError),
        ("delete", "missing", FileNotFoundError),
        ("write", "folder", IsADirectoryError),
        ("write", "file/below", NotADirectoryError),
    ],
)
async def test_what_is_wrong_with_a_path_is_an_oserror_that_names_it(
    shared: Sandbox, operation: str, path: str, error: type[OSError]
) -> None:
    await sh(
        shared, "mkdir -p folder; echo x > file; [ -e fifo ] || mkfifo fifo; ln -sfn circle circle"
    )
    whole = f"{WORKSPACE}/{path}"
    calls = {
        "read": lambda: shared.read_bytes(whole),
        "write": lambda: shared.write_bytes(whole, b"x"),
        "delete": lambda: shared.delete(whole),
        "stat": lambda: shared.lstat(whole),
        "list": lambda: shared.list(whole),
        "walk": lambda: shared.walk(whole, max_entries=10, timeout_seconds=5),
        "grep": lambda: shared.grep("x", whole, only=None, max_hits=10, timeout_seconds=5),
    }

    with pytest.raises(error) as raised:
        await calls[operation]()

    assert raised.value.filename in {whole, None}
    assert (await sh(shared, "echo usable")).output == b"usable\n"


async def test_files_links_and_folders_are_deleted(shared: Sandbox) -> None:
    await sh(
        shared, "mkdir -p d/e/f; echo x > d/e/f/g; ln -s /etc d/e/link; echo y > kept; ln -s kept l"
    )

    await shared.delete(f"{WORKSPACE}/l")
    await shared.delete(f"{WORKSPACE}/d")

    assert await shared.read_bytes(f"{WORKSPACE}/kept") == b"y\n"
    assert (await sh(shared, "ls -d d l 2>/dev/null; ls /etc/passwd")).output == b"/etc/passwd\n"


async def test_an_entry_says_what_is_there(shared: Sandbox) -> None:
    await sh(
        shared,
        "mkdir kinds; cd kinds; echo abc > b; mkdir a; ln -s b c; mkfifo d; chmod 640 b; touch -d @1000 b",
    )

    entries = await shared.list(f"{WORKSPACE}/kinds")

    assert [(entry.path.rpartition("/")[2], entry.kind) for entry in entries] == [
        ("a", "directory"), ("b", "file"), ("c", "symlink"), ("d", "other")]  # fmt: skip
    assert (entries[1].size_bytes, entries[1].mode, entries[1].modified_at) == (4, 0o640, 1000)
    assert entries[1] == await shared.lstat(f"{WORKSPACE}/kinds/b")


async def test_a_linked_folder_is_listed_under_its_own_name(shared: Sandbox) -> None:
    await sh(shared, "mkdir -p real; echo needle > real/x; ln -sfn real alias")

    assert [entry.path for entry in await shared.list(f"{WORKSPACE}/alias")] == [
        f"{WORKSPACE}/alias/x"
    ]
    found = await shared.grep(
        "needle", f"{WORKSPACE}/alias", only=None, max_hits=5, timeout_seconds=5
    )
    assert [hit.path for hit in found.hits] == [f"{WORKSPACE}/alias/x"]


async def test_a_walk_gives_all_files_sorted_and_no_git(sandbox: Sandbox) -> None:
    script = """
        mkdir -p a/b .git/x a/.git; echo 1 > a/b/c; echo 1 > a.txt; echo 1 > .git/x/y; echo > a/.git/z
        ln -s /etc a/etc; printf 1 > "$(printf 'odd\\377')"
    """
    await sh(sandbox, script)

    walked = await sandbox.walk(WORKSPACE, max_entries=100, timeout_seconds=5)

    names = [entry.path.removeprefix(f"{WORKSPACE}/") for entry in walked.entries]
    assert names == sorted(["a/b/c", "a.txt", "a/etc", r"odd\xff"])
    assert walked.complete
    assert await sandbox.read_bytes(rf"{WORKSPACE}/odd\xff") == b"1"


async def test_a_walk_ends_with_its_budget(sandbox: Sandbox) -> None:
    await sh(sandbox, "for n in $(seq 50); do echo > $n; done")

    exact = await sandbox.walk(WORKSPACE, max_entries=50, timeout_seconds=5)
    short = await sandbox.walk(WORKSPACE, max_entries=49, timeout_seconds=5)
    late = await sandbox.walk(WORKSPACE, max_entries=50, timeout_seconds=0)

    assert (len(exact.entries), exact.complete) == (50, True)
    assert (len(short.entries), short.complete) == (49, False)
    assert not late.complete


async def test_grep_finds_text_as_it_is_written(sandbox: Sandbox) -> None:
    await sandbox.write_bytes(f"{WORKSPACE}/a.txt", b"one\nt.o (x)\r\nthree t.o\n")
    await sandbox.write_bytes(
        f"{WORKSPACE}/b/c.txt", "ü t.o \xff".encode("latin-1") + b"\nno newline t.o"
    )
    await sandbox.write_bytes(f"{WORKSPACE}/binary", b"t.o\0t.o\n")
    await sandbox.write_bytes(f"{WORKSPACE}/.git/config", b"t.o\n")
    await sandbox.write_bytes(
        f"{WORKSPACE}/long", b"x" * 5000 + b"t.o" + b"y" * 3_000_000 + b"\nt.o\n"
    )
    await sh(sandbox, "ln -s a.txt link")

    found = await sandbox.grep("t.o", WORKSPACE, only=None, max_hits=100, timeout_seconds=10)

    assert found.complete
    assert [(hit.path.removeprefix(f"{WORKSPACE}/"), hit.line_number) for hit in found.hits] == [
        ("a.txt", 2), ("a.txt", 3), ("long", 1), ("long", 2), ("b/c.txt", 1), ("b/c.txt", 2)]  # fmt: skip
    assert found.hits[0].line == "t.o (x)"
    assert all(len(hit.line) <= 2000 for hit in found.hits)


async def test_grep_looks_into_one_file_or_into_those_that_are_named(sandbox: Sandbox) -> None:
    for name in "abc":
        await sandbox.write_bytes(f"{WORKSPACE}/{name}", b"needle\n")

    one = await sandbox.grep("needle", f"{WORKSPACE}/a", only=None, max_hits=9, timeout_seconds=5)
    only = [f"{WORKSPACE}/c", f"{WORKSPACE}/gone", f"{WORKSPACE}/b"]
    named = await sandbox.grep("needle", WORKSPACE, only=only, max_hits=9, timeout_seconds=5)

    assert [hit.path for hit in one.hits] == [f"{WORKSPACE}/a"]
    assert [hit.path for hit in named.hits] == [f"{WORKSPACE}/c", f"{WORKSPACE}/b"]


async def test_grep_ends_with_its_budget(sandbox: Sandbox) -> None:
    await sh(sandbox, "for n in $(seq 10); do echo needle > $n; done")

    exact = await sandbox.grep("needle", WORKSPACE, only=None, max_hits=10, timeout_seconds=5)
    short = await sandbox.grep("needle", WORKSPACE, only=None, max_hits=9, timeout_seconds=5)
    late = await sandbox.grep("needle", WORKSPACE, only=None, max_hits=10, timeout_seconds=0)

    assert (len(exact.hits), exact.complete) == (10, True)
    assert (len(short.hits), short.complete) == (9, False)
    assert not late.complete


async def test_a_job_does_not_reach_the_files_of_this_machine(
    shared: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("not for jobs")
    await sh(shared, f"ln -sfn {tmp_path} escape")

    for path in (f"{tmp_path}/mine", f"{WORKSPACE}/escape/mine", f"{WORKSPACE}/../{tmp_path}/mine"):
        # what has this name in the sandbox is the sandbox's own
        with contextlib.suppress(OSError):
            assert await shared.read_bytes(path) == b"overwritten"
        with contextlib.suppress(OSError):
            await shared.write_bytes(path, b"overwritten")

    assert (tmp_path / "mine").read_text() == "not for jobs"


# --- changes
# ------------------------------------------------------------------------------------------------


async def collect_changes(sandbox: Sandbox) -> Changes:
    bundle = await sandbox.changes()

    def read() -> Changes:
        with bundle, ChangeBundle.open(bundle) as opened:
            return opened.changes

    return await asyncio.to_thread(read)


def described(changes: Changes) -> dict[str, str]:
    return {
        file.path: f"renamed<{file.from_path}" if file.from_path is not None else file.change.value
        for file in changes.files
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_changes_are_exact(bench: Bench, sample: str, case: Case) -> None:
    async with bench.open(
        sample, limits=LIMITS.model_copy(update={"disk_bytes": 40 * 1024 * MIB})
    ) as sandbox:
        result = await sh(sandbox, case.script)
        changes = await collect_changes(sandbox)

    assert (result.exit_code, result.output) == (0, b"")
    assert described(changes) == case.files
    assert changes.ignored == case.ignored
    assert tuple(entry.path for entry in changes.skipped) == case.skipped


async def test_commits_of_the_job_hide_nothing_and_run_nothing(bench: Bench, sample: str) -> None:
    script = """
        rm -rf .git; git init -q .; git config user.email a@b.c; git config user.name n
        git config core.fsmonitor "touch /tmp/was-run; true"
        echo x > committed; git add -A; git -c core.hooksPath=/dev/null commit -qm one
        echo y >> README.md; git update-index --assume-unchanged README.md
    """
    async with bench.open(sample) as sandbox:
        result = await sh(sandbox, f"{{ {script} }} 2>/dev/null; rm /tmp/was-run")
        changes = await collect_changes(sandbox)

        assert (result.exit_code, result.output) == (0, b"")
        assert (await sh(sandbox, "test -e /tmp/was-run")).exit_code == 1
        assert described(changes) == {"committed": "added", "README.md": "modified"}


async def test_folders_of_the_snapshot_are_renamed(bench: Bench, sample: str) -> None:
    async with bench.open(sample) as sandbox:
        renamed = await sh(
            sandbox,
            "set -e; rm -rf .git; git init -q; git add -A -f; git mv pkg lib; git mv lib source;"
            " python3 -c \"import os; os.rename('folder', 'log/moved')\"; echo more >> log/moved/x",
        )
        assert (renamed.exit_code, renamed.output) == (0, b"")
        changes = await collect_changes(sandbox)

    paths = {file.path: (file.change.value, file.from_path) for file in changes.files}
    assert paths["source/core.py"] == ("renamed", "pkg/core.py")
    assert paths["source/deep/a/b/c.txt"] == ("renamed", "pkg/deep/a/b/c.txt")
    assert paths["log/moved/sub/z"] == ("renamed", "folder/sub/z")
    assert not [path for path in paths if path.startswith(("pkg/", "lib/"))]
    assert "log/moved/x" in paths


async def test_an_empty_workspace_gets_files(sandbox: Sandbox) -> None:
    assert (await collect_changes(sandbox)).files == ()

    await sandbox.write_bytes(f"{WORKSPACE}/a/b", b"x")

    assert described(await collect_changes(sandbox)) == {"a/b": "added"}


async def test_a_job_without_changes_has_an_empty_bundle(bench: Bench, sample: str) -> None:
    async with bench.open(sample) as sandbox:
        await sh(sandbox, "cat README.md; ls -R > /dev/null; touch /tmp/elsewhere")

        assert (await collect_changes(sandbox)) == Changes()


# --- life
# -------------------------------------------------------------------------------------------------


async def test_a_snapshot_is_unpacked_as_it_was(bench: Bench, sample: str) -> None:
    async with bench.open(sample) as sandbox:
        assert (
            await sh(sandbox, "./run.sh; readlink outside; cat 'data/spa ce.txt'; ls -d bare")
        ).output == (b"hi\n/etc/passwd\nspace\nbare\n")
        assert len(await sandbox.read_bytes(f"{WORKSPACE}/data/binary.bin")) == 4096


async def test_jobs_on_one_snapshot_do_not_see_each_other(bench: Bench, sample: str) -> None:
    async with bench.open(sample) as one, bench.open(sample) as other:
        await asyncio.gather(sh(one, "echo one > README.md; echo > new"), sh(other, "rm -rf pkg"))

        assert (await sh(other, "head -1 README.md; ls new 2>/dev/null")).output == b"# sample\n"
        assert (await sh(one, "ls pkg/core.py")).output == b"pkg/core.py\n"


async def test_the_next_attempt_sees_the_files_of_the_last(bench: Bench, sample: str) -> None:
    job = new_job_id()
    async with bench.open(sample, job=job) as sandbox:
        await sh(sandbox, "echo first > first; rm README.md")

    async with bench.open(sample, job=job, attempt=2) as sandbox:
        assert (await sh(sandbox, "cat first; ls README.md 2>/dev/null")).output == b"first\n"
        assert described(await collect_changes(sandbox)) == {
            "README.md": "deleted",
            "first": "added",
        }


async def test_a_discarded_job_starts_anew(bench: Bench, sample: str) -> None:
    job = new_job_id()
    async with bench.open(sample, job=job) as sandbox:
        await sh(sandbox, "echo first > first")

    await bench.provider.discard(job)
    await bench.provider.discard(job)

    async with bench.open(sample, job=job) as sandbox:
        assert (await collect_changes(sandbox)).files == ()


async def test_a_closed_sandbox_has_no_processes_and_does_nothing(bench: Bench) -> None:
    sleep = unique_sleep()
    async with bench.open() as sandbox:
        await sh(sandbox, f"(setsid {sleep} &)")

    assert sleep not in await asyncio.to_thread(_command_lines)
    for call in (sandbox.read_bytes("/workspace/x"), sandbox.run(Command(argv="true"))):
        with pytest.raises(SandboxFailure):
            await call


def _command_lines() -> str:
    """Of every process of this machine."""
    texts = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            texts.append(place.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return "\n".join(texts)


async def test_reaping_spares_live_jobs(bench: Bench) -> None:
    live, dead = new_job_id(), new_job_id()
    for job in (live, dead):
        async with bench.open(job=job) as sandbox:
            await sandbox.write_bytes(f"{WORKSPACE}/kept", b"x")

    async def is_live(job: str) -> bool:
        return job != dead

    assert await bench.provider.reap(is_live) > 0
    async with bench.open(job=live, attempt=2) as sandbox:
        assert await sandbox.read_bytes(f"{WORKSPACE}/kept") == b"x"
    async with bench.open(job=dead, attempt=2) as sandbox:
        assert not await sandbox.list(WORKSPACE)


@pytest.mark.parametrize(
    "damage", ["../out", "/etc/out", "fifo", "hard link", "noise", "cut short"]
)
async def test_an_unusable_snapshot_is_refused(bench: Bench, damage: str) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(damage)
        if damage == "fifo":
            member.type = tarfile.FIFOTYPE
        elif damage == "hard link":
            member.type, member.linkname = tarfile.LNKTYPE, "/etc/passwd"
        else:
            member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))

    snapshot = bench.add_snapshot(fill)
    if damage == "noise":
        (bench.folder / snapshot).write_bytes(os.urandom(2000))
    elif damage == "cut short":
        (bench.folder / snapshot).write_bytes((bench.folder / snapshot).read_bytes()[:513])

    with pytest.raises(SnapshotUnusable):
        async with bench.open(snapshot):
            pass


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_job_over_its_disk_limit_is_told_which(bench: Bench) -> None:
    limits = LIMITS.model_copy(update={"disk_bytes": 20 * MIB})
    script = "for n in $(seq 100); do head -c 5000000 /dev/urandom > f$n; sleep 0.2; done"
    async with bench.open(limits=limits) as sandbox:
        if await has_disks(bench.provider):  # the kernel refuses, and the job goes on
            fill = "for n in 1 2 3; do head -c 10000000 /dev/urandom > f$n; done; exit 3"
            result = await sh(sandbox, fill)
            assert "20971520" in result.notice
            assert (await sh(sandbox, "rm f*; echo $?")).notice == ""
            return
        with pytest.raises(DiskLimitExceeded, match=r"20,?971,?520"):
            await sh(sandbox, script)
        with pytest.raises(DiskLimitExceeded):
            await sandbox.read_bytes(f"{WORKSPACE}/f1")

        assert (await collect_changes(sandbox)).files


@pytest.mark.slow
async def test_one_file_may_not_be_bigger_than_the_disk_limit(bench: Bench) -> None:
    async with bench.open(limits=LIMITS.model_copy(update={"disk_bytes": 5 * MIB})) as sandbox:
        result = await sh(sandbox, "head -c 50000000 /dev/zero > big; wc -c < big")

    assert int(result.output.split()[-1]) <= 5 * MIB


@pytest.mark.slow
async def test_many_sandboxes_are_open_at_once(bench: Bench, sample: str) -> None:
    async def work(number: int) -> bytes:
        async with bench.open(sample) as sandbox:
            await sandbox.write_bytes(f"{WORKSPACE}/mine", b"%d" % number)
            return (await sh(sandbox, "cat mine")).output

    assert await asyncio.gather(*map(work, range(12))) == [b"%d" % number for number in range(12)]
