"""Runs the local provider's commands as process groups of this machine, and finds their processes again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workers.sandbox.protocol import WORKSPACE, Command, CommandResult, OutputSink
from workers.sandbox.resident_commands import (
    COMMAND_MARKER,
    DRAIN_SECONDS,
    GIVE_UP_SECONDS,
    GRACE_SECONDS,
    Pipe,
    other_processes,
    signal_all,
    stdin_descriptor,
)

JOB_MARKER = "FANOUT_SANDBOX"
_LIMITED = """
for limit in "-c 0" "-d $1" "-f $2"; do ulimit $limit 2>/dev/null || :; done
cd "$3" && shift 3 && exec "$@" || exit 127
"""
_BOUND = f'mount --bind "$1" {WORKSPACE} && mount --bind "$2" /tmp && shift 2 && exec "$@" || exit 127'


@dataclass(frozen=True)
class Place:
    """Where a job's commands run."""

    token: str
    """Unlike any other sandbox's of this machine; processes are found by it."""
    tree: Path
    tmp: Path
    memory_bytes: int
    file_bytes: int
    bound: bool
    """Commands see the tree as `/workspace` and `tmp` as `/tmp`, in a mount namespace of their own."""

    def argv(self, command: Command, cwd: str) -> list[str]:
        """The whole command line; a command that cannot be started ends with 127 or 126, as in a shell."""
        own = ["/bin/sh", "-c", command.argv] if isinstance(command.argv, str) else list(command.argv)
        if not own:
            raise ValueError("an empty command")
        limits = (str(self.memory_bytes // 1024), str(self.file_bytes // 512))
        limited = ["/bin/sh", "-c", _LIMITED, "sh", *limits, cwd, *own]
        if not self.bound:
            return limited
        return ["unshare", "-m", "--", "/bin/sh", "-c", _BOUND, "sh", str(self.tree), str(self.tmp), *limited]

    def environment(self, more: Mapping[str, str], marker: str) -> dict[str, str]:
        """What a command sees: nothing of the worker's environment."""
        tmp = "/tmp" if self.bound else str(self.tmp)  # noqa: S108 - the job's own
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{tmp}/home",
            "TMPDIR": tmp,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
            COMMAND_MARKER: marker,
            JOB_MARKER: self.token,
        }


def processes_of_job(token: str, tree: Path) -> list[int]:
    """Every live process of a sandbox: by its marker; by its mounts; by its working directory."""
    wanted, found = f"{JOB_MARKER}={token}".encode(), []
    own_mounts = _link(f"/proc/{os.getpid()}/ns/mnt")
    for pid, _session in other_processes():
        folder = _link(f"/proc/{pid}/cwd")
        mounts = _link(f"/proc/{pid}/ns/mnt")
        if (
            folder == str(tree)
            or folder.startswith(f"{tree}/")
            or wanted in _content(f"/proc/{pid}/environ").split(b"\0")
            or (mounts not in ("", own_mounts) and os.fsencode(f" {WORKSPACE} ") in _mounts_of(pid, tree))
        ):
            found.append(pid)
    return found


def _mounts_of(pid: int, tree: Path) -> bytes:
    """The lines of a process's mount table that name the tree, wherever its file system is mounted."""
    suffix = os.fsencode(f"/{tree.parent.name}/{tree.name} ")
    lines = _content(f"/proc/{pid}/mountinfo").split(b"\n")
    return b"\n".join(line for line in lines if suffix in line)


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def kill_job(token: str, tree: Path) -> bool:
    """Kill every process of a sandbox; False when some are still there after some seconds."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while found := processes_of_job(token, tree):
        signal_all(found, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@dataclass
class LocalRun:
    """One command on its way. Created and awaited in the event loop; no thread waits for it."""

    process: subprocess.Popen[bytes]
    pipes: Sequence[Pipe]
    marker: str
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    """All its outputs are closed."""
    _release: list[Callable[[], None]] = field(default_factory=list)

    def listen(self, sink: Callable[[bytes], None]) -> None:
        """Collect its output and its end."""
        loop = asyncio.get_running_loop()
        for pipe in self.pipes:
            loop.add_reader(pipe.descriptor, self._on_output, pipe, sink)
        ending = os.pidfd_open(self.process.pid)
        loop.add_reader(ending, self.exited.set)

        def release() -> None:
            loop.remove_reader(ending)
            os.close(ending)

        self._release.append(release)

    def _on_output(self, pipe: Pipe, sink: Callable[[bytes], None]) -> None:
        descriptor = pipe.descriptor
        data = pipe.read()
        if data:
            sink(data)
        if not pipe.open:
            asyncio.get_running_loop().remove_reader(descriptor)
            if not any(other.open for other in self.pipes):
                self.silent.set()

    def processes(self) -> list[int]:
        """Its live processes: those of its session, and those that carry its marker."""
        wanted = f"{COMMAND_MARKER}={self.marker}".encode()
        return [
            pid
            for pid, session in other_processes()
            if session == self.process.pid or wanted in _content(f"/proc/{pid}/environ").split(b"\0")
        ]

    async def stop(self) -> None:
        """Ask its processes to end, then kill them."""
        ends = time.monotonic() + GRACE_SECONDS
        number = signal.SIGTERM
        signal_all(await asyncio.to_thread(self.processes), number)
        while found := await asyncio.to_thread(self.processes):
            now = time.monotonic()
            if now >= ends:
                signal_all(found, signal.SIGKILL)
            if now >= ends + GIVE_UP_SECONDS:
                return
            await asyncio.sleep(0.02)

    async def drain(self) -> None:
        """Await the rest of the output, shortly: a process that was left behind may hold it open."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.silent.wait(), DRAIN_SECONDS)

    def release(self) -> None:
        """Give back descriptors; its end is collected."""
        loop = asyncio.get_running_loop()
        for pipe in self.pipes:
            if pipe.open:
                pipe.read()
                loop.remove_reader(pipe.descriptor)
                pipe.close()
        while self._release:
            self._release.pop()()
        self.process.poll()


def start(place: Place, command: Command, cwd: str, marker: str) -> LocalRun:
    """Start a command; OSError when this machine cannot."""
    pipes = [Pipe(command.max_output_bytes) for _ in range(1 if command.merge_stderr else 2)]
    stdin = stdin_descriptor(None, command.stdin)
    try:
        process = subprocess.Popen(  # noqa: S603 - running the job's commands is the purpose
            place.argv(command, cwd),
            stdin=stdin,
            stdout=pipes[0].write_end,
            stderr=pipes[-1].write_end,
            cwd="/",
            env=place.environment(command.env, marker),
            start_new_session=True,
        )
    except BaseException:
        for pipe in pipes:
            pipe.close()
        raise
    finally:
        os.close(stdin)
        for pipe in pipes:
            os.close(pipe.write_end)
    return LocalRun(process, pipes, marker)


async def run(
    place: Place, command: Command, cwd: str, marker: str, on_output: OutputSink | None
) -> CommandResult:
    """Run a command to its end; a cancelled caller leaves none of its processes behind."""
    started = time.monotonic()
    try:
        current = await _started(place, command, cwd, marker)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a command"
        message = f"cannot start the command: {reason}\n".encode()
        return CommandResult(exit_code=127, output=message, total_bytes=len(message))
    timed_out = False
    stream = _Stream(command.max_output_bytes, on_output)
    current.listen(stream.put)
    pumping = asyncio.create_task(stream.pump())
    try:
        waiting = asyncio.create_task(current.exited.wait())
        try:
            await asyncio.wait(
                {waiting, pumping}, timeout=command.timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if pumping.done():
                pumping.result()  # the sink failed: so does the call
        finally:
            waiting.cancel()
        timed_out = not current.exited.is_set()
        if timed_out:
            await current.stop()
        await current.drain()
        stream.end()
        await pumping
    except BaseException:
        await asyncio.shield(current.stop())
        raise
    finally:
        pumping.cancel()
        current.release()
    code = current.process.returncode
    first, last = current.pipes[0].kept, current.pipes[-1].kept
    return CommandResult(
        exit_code=-signal.SIGKILL if code is None else code,
        output=first.content(),
        error_output=b"" if last is first else last.content(),
        total_bytes=first.total,
        timed_out=timed_out,
        seconds=time.monotonic() - started,
    )


async def _started(place: Place, command: Command, cwd: str, marker: str) -> LocalRun:
    """Start in a thread; what a cancelled caller has started is stopped."""
    starting = asyncio.ensure_future(asyncio.to_thread(start, place, command, cwd, marker))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ValueError):
            current = await starting
            await current.stop()
            current.release()
        raise


class _Stream:
    """Hands a command's output on to a sink that may be slow; holds no more than the output cap."""

    def __init__(self, max_bytes: int, sink: OutputSink | None) -> None:
        self._left, self._sink = max_bytes, sink
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()

    def put(self, data: bytes) -> None:
        part = data[: self._left]
        if part and self._sink is not None:
            self._left -= len(part)
            self._parts.put_nowait(part)

    def end(self) -> None:
        self._parts.put_nowait(b"")

    async def pump(self) -> None:
        while part := await self._parts.get():
            if self._sink is not None:
                await self._sink(part)
