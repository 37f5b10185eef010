"""The resident as a process of its own, driven through its pipes as through a container's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanout.workers.sandbox.docker.steward_client import code_files
from fanout.workers.sandbox.errors import SandboxDied
from fanout.workers.sandbox.inside import commands, frames
from fanout.workers.sandbox.inside.loop import Loop
from fanout.workers.sandbox.protocol import Command
from fanout.workers.sandbox.resident.client import ResidentClient, upload
from fanout.workers.sandbox.resident.replies import OperationFailed
from fanout.workers.sandbox.resident.sandbox import ResidentSandbox
from tests.waits import eventually, eventually_in_thread

EXTRA_OPERATIONS = """
import sys, time
from fanout.workers.sandbox.inside import resident

def flood(context, arguments, payload):
    for number in range(arguments["chunks"]):
        context.send_chunk(bytes([number % 256]) * 65536)
    return {"sent": arguments["chunks"]}, b"end"

def refuse(arguments, payload):
    raise resident.OperationRefused("NotToday", "come back tomorrow")

def fail(arguments, payload):
    raise RuntimeError("a secret")

def nap(context, arguments, payload):
    time.sleep(arguments["seconds"])
    return {}, b""

resident.SLOW_OPERATIONS.update(flood=flood, nap=nap)
resident.OPERATIONS.update(refuse=refuse, fail=fail)
main = resident.main
"""


WITHOUT_PTRACE = () if os.geteuid() else ("setpriv", "--bounding-set=-sys_ptrace")
"""As root, whose children could otherwise reach the resident, which then does not start."""


class ProcessStream:
    """The pipes of a child process as a `ByteStream`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    async def read(self) -> bytes:
        return await self._out.read(1 << 16)

    async def write(self, data: bytes) -> None:
        self._in.write(data)
        await self._in.drain()

    async def close(self) -> None:
        self._in.close()
        with contextlib.suppress(OSError):
            await self._in.wait_closed()
        await self.process.wait()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    files = {
        **code_files(),
        "extra.py": EXTRA_OPERATIONS.encode(),
        "__main__.py": b"import extra\nextra.main()\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


async def start(code: Path, **environment: str) -> ProcessStream:
    process = await asyncio.create_subprocess_exec(
        *WITHOUT_PTRACE, sys.executable, "-ISB", str(code),
        stdin=-1, stdout=-1, env={"PATH": os.environ["PATH"], "FANOUT_X": "x", **environment},
    )  # fmt: skip
    return ProcessStream(process)


@pytest.fixture
async def stream(code: Path) -> AsyncIterator[ProcessStream]:
    stream = await start(code)
    yield stream
    if stream.process.returncode is None:
        stream.process.kill()
    await stream.process.wait()


@pytest.fixture
async def resident(stream: ProcessStream) -> AsyncIterator[ResidentClient]:
    client = ResidentClient(stream)
    await client.start(10)
    yield client
    await client.close()


async def ended(stream: ProcessStream, within_seconds: float) -> bool:
    try:
        await asyncio.wait_for(stream.process.wait(), within_seconds)
    except TimeoutError:
        return False
    return True


async def test_it_ends_when_its_input_ends(stream: ProcessStream) -> None:
    client = ResidentClient(stream)
    await client.start(10)
    marker = f"sleep 31{os.getpid()}"
    running = asyncio.create_task(
        ResidentSandbox(client).run(Command(argv=f"setsid --wait {marker}", cwd="/"))
    )
    await eventually(lambda: asyncio.to_thread(_is_running, marker))

    stream._in.close()

    assert await ended(stream, 60)
    with pytest.raises(SandboxDied):
        await running
    assert await _gone(marker)
    await client.close()


async def _gone(command_line: str) -> bool:
    """Wait until no such process is there: a killed one may take a moment to be reaped."""
    return not await eventually(
        lambda: asyncio.to_thread(_is_running, command_line), lambda runs: not runs
    )


def _is_running(command_line: str) -> bool:
    wanted = command_line.replace(" ", "\0").encode()
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in place.read_bytes():
                return True
    return False


@pytest.mark.parametrize(
    "noise",
    [
        frames.PREFIX.pack(frames.REQUEST, 1, 0xFFFFFFFF, 0),
        frames.PREFIX.pack(frames.REQUEST, 1, 4, 0xFFFFFFFF),
        frames.PREFIX.pack(99, 1, 0, 0),
        frames.PREFIX.pack(frames.REPLY, 1, 0, 0),
        frames.PREFIX.pack(frames.REQUEST, 1, 5, 0) + b"hello",
        frames.PREFIX.pack(frames.REQUEST, 1, 1, 0) + b"n",
        frames.pack_frame(frames.REQUEST, 1, {}),
        frames.pack_frame(frames.REQUEST, 1, {"op": "run", "arguments": {}}),
        frames.pack_frame(frames.REQUEST, 1, {"op": [], "arguments": {}}),
        frames.pack_frame(frames.REQUEST, 1, {"op": "ping", "arguments": "none"}),
    ],
)
async def test_it_ends_when_a_frame_is_malformed(stream: ProcessStream, noise: bytes) -> None:
    await stream.read()

    await stream.write(noise)

    assert await ended(stream, 60)


async def test_silence_ends_it_when_it_has_a_time_to_live(code: Path) -> None:
    stream = await start(code, FANOUT_RESIDENT_TTL="0.5")

    assert await ended(stream, 60)


async def test_a_client_that_knows_of_it_keeps_it_alive(code: Path) -> None:
    stream = await start(code, FANOUT_RESIDENT_TTL="1.5")
    client = ResidentClient(stream, ttl_seconds=1.5)
    await client.start(10)

    await asyncio.sleep(3.2)  # more than twice its time to live: that it lives on

    assert await client.request("ping", {})
    await client.close()


def _until_begun_and_gone(pid_file: Path) -> None:
    """Wait until a process has written its id, and then until it is no more."""
    eventually_in_thread(lambda: pid_file.exists() and pid_file.read_text())
    eventually_in_thread(lambda: not Path("/proc", pid_file.read_text().strip()).exists())


async def test_a_stalled_client_does_not_stop_its_clock(code: Path, tmp_path: Path) -> None:
    stream = await start(code)
    await stream.read()
    (tmp_path / "big").write_bytes(bytes(1 << 20))
    read = {"path": str(tmp_path / "big"), "offset": 0, "max_bytes": 1 << 20}
    for number in range(10):  # far more than the pipe takes, and nobody reads
        stream._in.write(request(number, "read", read))
    begun = tmp_path / "begun"
    run = {
        "argv": f"echo $$ > {begun}; exec sleep 61{os.getpid()}", "cwd": "/", "timeout_seconds": 0.5,
        "max_output_bytes": 1000,
    }  # fmt: skip
    stream._in.write(request(99, "run", run))

    async with asyncio.timeout(60):
        await asyncio.to_thread(_until_begun_and_gone, begun)
    assert not await asyncio.to_thread(_is_running, f"sleep 61{os.getpid()}")
    stream._in.close()
    async with asyncio.timeout(60):
        while await stream.read():
            pass
    assert await ended(stream, 60)


async def test_what_it_has_of_its_own_is_not_handed_on(resident: ResidentClient) -> None:
    sandbox = ResidentSandbox(resident)

    descriptors = await sandbox.run(Command(argv=["ls", "/proc/self/fd"], cwd="/"))
    environment = await sandbox.run(Command(argv=["env"], cwd="/"))
    signals = await sandbox.run(Command(argv=["grep", "SigIgn", "/proc/self/status"], cwd="/"))

    assert descriptors.output.split() == [b"0", b"1", b"2", b"3"]
    assert b"FANOUT_X" not in environment.output
    assert int(signals.output.split()[1], 16) & (1 << (signal.SIGTERM - 1)) == 0


async def test_big_answers_arrive_in_parts_at_the_clients_pace(resident: ResidentClient) -> None:
    got: list[bytes] = []

    async def slowly(part: bytes) -> None:
        await asyncio.sleep(0.001)
        got.append(part)

    result, data = await resident.request("flood", {"chunks": 300}, on_chunk=slowly)

    assert (result, data) == ({"sent": 300}, b"end")
    assert [part[0] for part in got] == [number % 256 for number in range(300)]


async def test_a_slow_answer_holds_nothing_up(resident: ResidentClient) -> None:
    blocked = asyncio.Event()

    async def never(_part: bytes) -> None:
        await blocked.wait()

    flood = asyncio.create_task(resident.request("flood", {"chunks": 10_000}, on_chunk=never))
    nap = asyncio.create_task(resident.request("nap", {"seconds": 20}))
    await asyncio.sleep(0.05)

    await resident.request("ping", {})

    assert not nap.done()
    for request in (flood, nap):
        request.cancel()
    await asyncio.gather(flood, nap, return_exceptions=True)
    assert await resident.request("ping", {})


async def test_refusals_and_faults_cross_without_their_secrets(resident: ResidentClient) -> None:
    with pytest.raises(OperationFailed, match="come back tomorrow") as refused:
        await resident.request("refuse", {})
    with pytest.raises(OperationFailed) as failed:
        await resident.request("fail", {})
    with pytest.raises(OperationFailed):
        await resident.request("unheard of", {})

    assert refused.value.kind == "NotToday"
    assert failed.value.kind == "RuntimeError"
    assert "secret" not in str(failed.value)


async def test_an_upload_that_is_not_used_is_removed_at_the_end(
    resident: ResidentClient, tmp_path: Path
) -> None:
    await upload(resident, bytes(3 << 20), str(tmp_path / "uploads"))
    assert len(list((tmp_path / "uploads").iterdir())) == 1

    await resident.close()

    assert list((tmp_path / "uploads").iterdir()) == []


async def test_every_pending_and_later_request_says_that_the_sandbox_is_dead(
    resident: ResidentClient, stream: ProcessStream
) -> None:
    pending = [asyncio.create_task(resident.request("nap", {"seconds": 30})) for _ in range(5)]
    await asyncio.sleep(0.1)

    stream.process.kill()

    results = await asyncio.gather(*pending, return_exceptions=True)
    assert [type(result) for result in results] == [SandboxDied] * 5
    with pytest.raises(SandboxDied):
        await resident.request("ping", {})
    assert resident.is_dead


def request(number: int, op: str, arguments: dict[str, Any]) -> bytes:
    return frames.pack_frame(frames.REQUEST, number, {"op": op, "arguments": arguments})


def reply(number: int, result: Any) -> bytes:
    return frames.pack_frame(frames.REPLY, number, {"result": result})


class ScriptedStream:
    """A peer that sends what it was told to, and reads everything."""

    def __init__(self, *parts: bytes, pause: float = 0.0) -> None:
        self._parts, self._pause = list(parts), pause
        self.closed = asyncio.Event()

    async def read(self) -> bytes:
        await asyncio.sleep(self._pause)
        if self._parts:
            return self._parts.pop(0)
        await self.closed.wait()
        return b""

    async def write(self, _data: bytes) -> None:
        pass

    async def close(self) -> None:
        self.closed.set()


READY = frames.pack_frame(frames.READY, 0)


async def test_its_processes_are_dead_when_it_says_so_and_what_runs_fails(
    resident: ResidentClient, stream: ProcessStream
) -> None:
    marker = f"sleep 32{os.getpid()}"
    running = asyncio.create_task(
        ResidentSandbox(resident).run(Command(argv=f"setsid --wait {marker}", cwd="/"))
    )
    await eventually(lambda: asyncio.to_thread(_is_running, marker))

    assert await resident.end(5)

    assert await _gone(marker)
    with pytest.raises(SandboxDied, match="closed"):
        await running
    with pytest.raises(SandboxDied, match="closed"):
        await resident.request("ping", {})
    assert await ended(stream, 60)


@pytest.mark.parametrize(
    "answer",
    [
        (),
        (reply(1, {"but": 1}),),
        (frames.pack_frame(frames.REPLY, 1, {"errno": 5}),),
        (b"?" * 99,),
    ],
)
async def test_an_end_that_is_not_confirmed_is_not_certain(answer: tuple[bytes, ...]) -> None:
    client = ResidentClient(ScriptedStream(READY, *answer, pause=0.02))
    await client.start(1)

    assert not await client.end(0.2)


async def test_a_resident_that_has_died_before_its_end_has_not_certainly_ended() -> None:
    client = ResidentClient(ScriptedStream(READY, b"?" * 99, pause=0.05))
    await client.start(1)
    with pytest.raises(SandboxDied):
        await client.request("ping", {})

    assert not await client.end(0.2)


@pytest.mark.parametrize(
    "noise",
    [
        b"no frame at all, but text of some length",
        frames.PREFIX.pack(frames.REPLY, 1, 1 << 30, 0),
        READY,
        frames.pack_frame(frames.REPLY, 1, {}),
        reply(1, 3),
        frames.PREFIX.pack(frames.REPLY, 1, 40, 0) + b"l" * 40,
        frames.PREFIX.pack(frames.REPLY, 1, 12, 0) + b"s99999999;ab",
    ],
)
async def test_a_malformed_answer_means_that_the_sandbox_is_dead(noise: bytes) -> None:
    client = ResidentClient(ScriptedStream(READY, noise, pause=0.02))
    await client.start(1)

    with pytest.raises(SandboxDied):
        await client.request("ping", {}, timeout_seconds=2)

    await client.close()


async def test_an_answer_that_does_not_come_means_that_the_sandbox_is_dead() -> None:
    client = ResidentClient(ScriptedStream(READY))
    await client.start(1)

    with pytest.raises(SandboxDied, match="did not answer"):
        await client.request("ping", {}, timeout_seconds=0.1)

    assert client.is_dead
    await client.close()


class SlowStream(ScriptedStream):
    """A peer that takes its time, and keeps what it was sent until it is enough."""

    def __init__(self, enough: int) -> None:
        super().__init__(READY)
        self.written: list[bytes] = []
        self.has_enough = asyncio.Event()
        self._enough = enough

    async def write(self, data: bytes) -> None:
        for _turn in range(3):
            await asyncio.sleep(0)
        self.written.append(data)
        if len(self.written) == self._enough:
            self.has_enough.set()


async def test_nothing_overtakes_what_was_sent_before_it() -> None:
    stream = SlowStream(50)
    client = ResidentClient(stream)
    await client.start(1)

    sending = []
    for number in range(50):
        sending.append(asyncio.create_task(client.send_tunnel(number, "data", b"x")))
        await asyncio.sleep(0)
    await asyncio.gather(*sending)
    await stream.has_enough.wait()

    assert [frames.PREFIX.unpack_from(frame)[1] for frame in stream.written] == list(range(50))
    await client.close()


async def test_a_sandbox_that_does_not_start_is_dead() -> None:
    client = ResidentClient(ScriptedStream())

    with pytest.raises(SandboxDied, match="did not start"):
        await client.start(0.1)

    await client.close()


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -5, 1 << 70, 1.5, -0.0, float("inf"), "", "ü\n", "a\udcffb", b"", b"\0;", [], {},
     [1, ["x", [b"y", None]]], {"a": {"b": [1, 2.5, {"c": b"d"}]}}],
)  # fmt: skip
def test_values_survive_the_wire(value: object) -> None:
    assert frames.decode(frames.encode(value)) == value


def test_frames_are_found_wherever_the_stream_is_cut() -> None:
    data = b"".join(
        frames.pack_frame(frames.REPLY, number, {"a": number}, b"x" * number)
        for number in range(50)
    )
    for size in (1, 7, 64, len(data)):
        reader = frames.FrameReader(lambda *_prefix: None)
        found = [
            frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])
        ]

        assert [
            (kind, number, frames.decode(header)["a"], len(payload))
            for kind, number, header, payload in found
        ] == [(frames.REPLY, n, n, n) for n in range(50)]


@pytest.mark.parametrize(
    ("new_processes", "container_is_emptied"),
    [
        pytest.param(0, False, id="a process vanishes slowly"),
        pytest.param(99, True, id="it forks faster than it can be killed"),
    ],
)
def test_neighbours_of_a_stopped_command_are_killed_only_for_a_fork_bomb(
    monkeypatch: pytest.MonkeyPatch, new_processes: int, container_is_emptied: bool
) -> None:
    pids = itertools.count(1000, 1 if new_processes else 0)
    signals: list[int] = []
    monkeypatch.setattr(commands, "list_processes", lambda *_: [next(pids)])
    monkeypatch.setattr(commands, "other_processes", lambda: iter(()))
    monkeypatch.setattr(commands, "signal_all", lambda pids, _number: signals.extend(pids))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    incoming, outgoing = os.pipe()
    running = commands.Commands(Loop(incoming, outgoing), reap_orphans=False)
    for number in (1, 2):
        arguments = {"argv": "true", "cwd": "/", "timeout_seconds": 9.0, "max_output_bytes": 9}
        running.start(number, arguments, b"")
    running.stop(1)

    running.advance(time.monotonic() + 1)

    assert (-1 in signals) is container_is_emptied
    for descriptor in (incoming, outgoing):
        os.close(descriptor)


async def test_no_variable_of_the_image_changes_how_a_shell_begins(
    code: Path, tmp_path: Path
) -> None:
    (tmp_path / "startup").write_text("echo from outside\n")
    images = {
        "BASH_ENV": str(tmp_path / "startup"),
        "ENV": str(tmp_path / "startup"),
        "SHELLOPTS": "xtrace",
        "BASHOPTS": "extdebug",
        "BASH_FUNC_echo%%": "() { printf 'a function of the image'; }",
        "KEPT": "kept",
    }
    stream = await start(code, **images)
    client = ResidentClient(stream)
    try:
        await client.start(10)
        result = await ResidentSandbox(client).run(Command(argv="echo $KEPT", cwd="/"))
    finally:
        await client.close()

    assert result.output == b"kept\n"


async def test_an_image_without_bash_has_sh(code: Path, tmp_path: Path) -> None:
    found = "fanout/orchestrator/portable/commands.py"
    source = (code / found).read_text()
    assert '/bash"' in source
    (code / found).write_text(source.replace('/bash"', '/no-bash"'))
    stream = await start(code)
    client = ResidentClient(stream)
    try:
        await client.start(10)
        result = await ResidentSandbox(client).run(Command(argv="echo $0", cwd="/"))
    finally:
        await client.close()

    assert result.output == b"/bin/sh\n"


@pytest.mark.slow
async def test_of_too_many_commands_with_background_processes_the_oldest_is_given_up(
    resident: ResidentClient, tmp_path: Path
) -> None:
    sandbox = ResidentSandbox(resident)
    tick = "until ! echo tick; do sleep 0.05; done 2>/dev/null; touch ended"
    first = await sandbox.run(Command(argv=f"trap '' PIPE; ({tick}) &", cwd=str(tmp_path)))
    assert first.left_running is not None
    holding = Command(argv="sleep 60 & true", cwd=str(tmp_path))

    results = await asyncio.gather(*(sandbox.run(holding) for _ in range(commands.MAX_BACKGROUNDS)))

    assert all(result.left_running is not None for result in results)
    await eventually((tmp_path / "ended").exists)
