"""Live processes: what every sandbox provider must do with them."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.provider import DockerSandbox
from fanout.workers.sandbox.local.sandbox import LocalSandbox
from fanout.workers.sandbox.protocol import WORKSPACE, Command, Process, ProcessEnded, Sandbox
from tests.contract import test_sandbox as contract
from tests.contract.test_sandbox import MIB, Bench, begun, count, gone, sh, unique_sleep
from tests.faults.stopping import running
from tests.waits import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

bench = contract.bench
shared = contract.shared
sandbox = contract.sandbox

ECHO = "while read -r line; do echo got $line; done"


async def everything(process: Process) -> bytes:
    """All that it writes until it ends."""
    parts = []
    with contextlib.suppress(ProcessEnded):
        while True:
            parts.append(await process.receive())
    return b"".join(parts)


async def line(process: Process) -> bytes:
    """What comes up to the end of a line."""
    data = b""
    while not data.endswith(b"\n"):
        data += await process.receive()
    return data


async def test_a_process_answers_while_it_runs(shared: Sandbox) -> None:
    async with shared.open_process(Command(argv=ECHO)) as process:
        await process.send(b"one\n")
        assert await line(process) == b"got one\n"
        await process.send(b"two\n")
        assert await line(process) == b"got two\n"


async def test_a_process_has_the_place_and_the_environment_of_every_command(
    shared: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "x")
    script = "env; pwd; id -u; ulimit -c"
    beside = await sh(shared, script, env={"MINE": "yes"})

    async with shared.open_process(Command(argv=script, env={"MINE": "yes"})) as process:
        seen = await everything(process)

    differ = (b"_=", b"FANOUT_", b"PWD=", b"OLDPWD=")
    assert [row for row in seen.splitlines() if not row.startswith(differ)] == [
        row for row in beside.output.splitlines() if not row.startswith(differ)
    ]
    assert b"MINE=yes" in seen
    assert b"SECRET_OF_THE_WORKER" not in seen


async def test_a_process_works_on_the_files_of_the_workspace(shared: Sandbox) -> None:
    await shared.write_bytes(f"{WORKSPACE}/server.sh", b"echo from a file; cat")

    async with shared.open_process(Command(argv=["sh", "server.sh"])) as process:
        assert await line(process) == b"from a file\n"


async def test_everything_that_was_sent_and_written_arrives_in_order(shared: Sandbox) -> None:
    data = os.urandom(3 * MIB)
    async with shared.open_process(Command(argv=["head", "-c", str(len(data))])) as process:
        sending = asyncio.create_task(process.send(data))
        received = await everything(process)
        await sending

    assert received == data


async def test_a_process_that_reads_slowly_holds_up_its_sender(shared: Sandbox) -> None:
    async with shared.open_process(Command(argv="read -r go; cat > /dev/null; echo ok")) as process:
        sending = asyncio.create_task(process.send(b"x" * (8 * MIB)))
        await asyncio.sleep(0.3)
        assert not sending.done()
        assert (await sh(shared, "echo free")).output == b"free\n"  # nobody else waits
        sending.cancel()


async def test_output_that_nobody_takes_holds_up_the_process(shared: Sandbox) -> None:
    script = "head -c 8000000 /dev/zero; echo done > written"
    async with shared.open_process(Command(argv=script)) as process:
        await asyncio.sleep(0.3)  # long enough to write all, were it not held up
        assert (await sh(shared, "ls written")).exit_code != 0
        assert len(await everything(process)) == 8_000_000
    assert (await sh(shared, "cat written")).output == b"done\n"


async def test_a_process_that_has_ended_says_so_with_its_last_words(shared: Sandbox) -> None:
    async with shared.open_process(
        Command(argv="echo last; echo the reason >&2; exit 3")
    ) as process:
        assert await line(process) == b"last\n"
        with pytest.raises(ProcessEnded, match="exit code 3: the reason") as ended:
            await process.receive()
        with pytest.raises(ProcessEnded):
            await process.send(b"anyone there?")

    assert ended.value.result.exit_code == 3
    assert process.error_output == b"the reason\n"


@pytest.mark.parametrize("argv", [["no-such-program"], [], ["a\0b"]])
async def test_a_process_that_cannot_be_started_has_ended(shared: Sandbox, argv: list[str]) -> None:
    async with shared.open_process(Command(argv=argv)) as process:
        with pytest.raises(ProcessEnded, match="exit code 127"):
            await process.receive()


async def test_error_output_is_told_while_it_runs_and_is_bounded(shared: Sandbox) -> None:
    script = "echo early >&2; seq 100000 >&2; echo ready; read -r go"
    async with shared.open_process(Command(argv=script, max_output_bytes=1000)) as process:
        assert await line(process) == b"ready\n"
        assert process.error_output.startswith(b"early\n1\n2\n")
        assert len(process.error_output) <= 1000
        await process.send(b"go\n")
        assert await everything(process) == b""

    assert process.error_output.endswith(b"99999\n100000\n")
    assert len(process.error_output) <= 1000


async def test_the_end_of_the_context_kills_the_process_and_its_children(shared: Sandbox) -> None:
    child, daemon = unique_sleep(), unique_sleep()
    script = f"trap '' TERM; {child} & setsid {daemon} & echo ready; wait; sleep 5"
    async with shared.open_process(Command(argv=script)) as process:
        assert await line(process) == b"ready\n"
        await begun(shared, child)
        assert await count(shared, child) == 1

    assert await count(shared, child) == await count(shared, daemon) == 0


async def test_what_a_process_leaves_behind_goes_with_it(shared: Sandbox) -> None:
    child = unique_sleep()
    async with shared.open_process(Command(argv=f"setsid {child} & echo ready")) as process:
        assert await everything(process) == b"ready\n"
        assert await gone(shared, child)


async def test_the_end_of_a_process_spares_what_commands_left_running(shared: Sandbox) -> None:
    daemon = unique_sleep()
    await sh(shared, f"setsid {daemon} > /dev/null 2>&1 &")
    await begun(shared, daemon)
    async with shared.open_process(Command(argv="cat")):
        pass

    assert await count(shared, daemon) == 1


async def test_a_process_that_is_ended_before_it_starts_ends_nothing_else(sandbox: Sandbox) -> None:
    async with sandbox.open_process(Command(argv="cat")):
        pass

    assert (await sh(sandbox, "echo well")).output == b"well\n"


async def test_a_cancelled_caller_leaves_no_process(shared: Sandbox) -> None:
    child = unique_sleep()
    ready = asyncio.Event()

    async def caller() -> None:
        async with shared.open_process(Command(argv=f"echo ready; {child}")) as process:
            await line(process)
            ready.set()
            await process.receive()

    task = asyncio.create_task(caller())
    await ready.wait()
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert await gone(shared, child)


async def test_many_processes_run_beside_commands(shared: Sandbox) -> None:
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(shared.open_process(Command(argv=ECHO)))
            for _ in range(8)
        ]
        for number, process in enumerate(processes):
            await process.send(b"%d\n" % number)
        timed_out = await sh(shared, "sleep 60", timeout_seconds=0.2)
        answers = await asyncio.gather(*(line(process) for process in processes))

        assert timed_out.timed_out
        assert answers == [b"got %d\n" % number for number in range(8)]
        await processes[0].send(b"still here\n")
        assert await line(processes[0]) == b"got still here\n"


async def test_processes_that_are_opened_one_after_the_other_are_all_heard(shared: Sandbox) -> None:
    async with contextlib.AsyncExitStack() as stack:
        processes = []
        for _ in range(4):
            process = await stack.enter_async_context(shared.open_process(Command(argv=ECHO)))
            processes.append(process)
            for each in processes:
                await each.send(b"one\n")
                assert await line(each) == b"got one\n"


async def test_a_dead_sandbox_is_no_end_of_a_process(sandbox: Sandbox) -> None:
    async with sandbox.open_process(Command(argv="echo ready; cat")) as process:
        assert await line(process) == b"ready\n"
        if isinstance(sandbox, LocalSandbox):
            await sandbox.close()
        else:
            assert isinstance(sandbox, DockerSandbox)
            sandbox._limited.mark_dead("the test pulled the plug")
        with pytest.raises(SandboxFailure):
            await process.receive()
        with pytest.raises(SandboxFailure):
            await process.send(b"x")
    with pytest.raises(SandboxFailure):
        async with sandbox.open_process(Command(argv="cat")) as process:
            await process.receive()


async def test_a_sandbox_that_is_closed_ends_its_processes(bench: Bench) -> None:
    opened, sleep = contextlib.AsyncExitStack(), unique_sleep()
    sandbox = await opened.enter_async_context(bench.open())
    process = await opened.enter_async_context(
        sandbox.open_process(Command(argv=f"trap '' TERM; echo ready; {sleep}; {sleep}"))
    )
    await line(process)

    async with asyncio.timeout(60):
        await opened.aclose()
    await eventually(lambda: asyncio.to_thread(running, sleep), lambda found: not found)
