"""Commands as processes of this machine (Linux).

Started, listened to, timed, killed with all they started.

No thread waits for a command and no output is held beyond its cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import uuid4

from ...cancellation import uninterrupted
from ...portable.command_output import (
    BoundedOutput,
    OutputFiles,
    RollingFile,
    WholeOutput,
)
from ...portable.commands import (
    ABANDONED_GRACE_SECONDS,
    COMMAND_MARKER,
    DRAIN_SECONDS,
    GIVE_UP_SECONDS,
    GRACE_SECONDS,
    MAX_NAMED_PROCESSES,
)
from .background import read_on
from .command_result import (
    LeftProcess,
    LeftRunning,
    OutputFile,
)
from .proc_table import (
    COMMANDS,
    CommandTable,
    command_line,
    signal_all,
)
from .protocol import Execution, OutputSink

READ_BYTES = 256 * 1024
"""The size of one read from a pipe; a pipe's buffer is smaller."""

_MAX_PENDING_BYTES = 4 * 1024**2
"""Output that waits for the disk; a command that is ahead of it by more has to wait too."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command to run, with its limits."""

    argv: Sequence[str]
    env: Mapping[str, str]
    """Its whole environment, except the marker."""
    timeout_seconds: float
    max_output_bytes: int
    """The limit on output and on error output; their beginning and end are kept."""
    cwd: str = "/"
    stdin: bytes = b""
    merge_stderr: bool = True
    output_files: OutputFiles | None = None
    """Where an output above its limit is kept as a whole; None drops its middle for good."""
    link: socket.socket | None = None
    """Takes the place of standard input and output, and is closed here once it has been passed on.
    When such a command ends, what it left running is killed."""
    marker: str = field(default_factory=lambda: uuid4().hex)
    confine: Callable[[], None] | None = None
    """Is called in a thread of this command's own, which then starts it: the command inherits what
    it changes of that thread. It may raise OSError."""


class OutputRecorder:
    """Writes one command's output into a file, in threads, once it is longer than its limit.

    Args:
        files: Where.
        resume: Called when the writer has caught up: more output may be read.
    """

    def __init__(self, files: OutputFiles, resume: Callable[[], None]) -> None:
        self._whole, self._resume = WholeOutput(files), resume
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the disk that no more output should be read."""
        return self._pending_bytes > _MAX_PENDING_BYTES

    def add(self, data: bytes, before: BoundedOutput) -> None:
        """Record data that follows what is in `before`, if that will not be all any more."""
        if self._writing is None:
            if not before.is_cut_by(data):
                return
            data = before.content() + data
        if not data or self._whole.is_full:
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def caught_up(self) -> None:
        """Wait until everything that was added is written."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})

    async def finish(self) -> OutputFile | None:
        """Close the file; None when nothing was or could be recorded."""
        await self.caught_up()
        whole = self._whole
        await asyncio.to_thread(whole.close)
        if not whole.size_bytes:
            return None
        return OutputFile(path=whole.path, size_bytes=whole.size_bytes)

    async def _write(self) -> None:
        while self._pending:
            parts, self._pending = self._pending, []
            await asyncio.to_thread(self._whole.append, b"".join(parts))
            self._pending_bytes = sum(map(len, self._pending))
            self._resume()


class Pipe:
    """One output of a running command."""

    def __init__(self, max_bytes: int) -> None:
        self.kept = BoundedOutput.halves(max_bytes)
        self.descriptor, self.write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.open = True
        self.recorder: OutputRecorder | None = None

    def read(self) -> bytes | None:
        """Return the available bytes; None at the end."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return b""
        if self.recorder is not None:
            self.recorder.add(data, self.kept)
        self.kept.add(data)
        return data or None

    def close(self) -> None:
        """Stop listening."""
        if self.open:
            self.open = False
            os.close(self.descriptor)

    def hand_over(self) -> int:
        """Return the descriptor, which is another's from now on."""
        self.open = False
        return self.descriptor


@dataclass
class RunningCommand:
    """A running command. Created and awaited in the event loop."""

    process: subprocess.Popen[bytes]
    pipes: Sequence[Pipe]
    marker: str
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all its outputs are closed."""
    _ending: int | None = None
    """A descriptor that becomes readable when the process ends."""

    def listen(self, sink: Callable[[bytes], None]) -> None:
        """Start to collect its output and its exit."""
        loop = asyncio.get_running_loop()
        for pipe in self.pipes:
            self._watch_pipes(pipe, sink)
        self._ending = os.pidfd_open(self.process.pid)
        loop.add_reader(self._ending, self._on_exit, self._ending)

    def _on_exit(self, ending: int) -> None:
        """Note the end once: the descriptor stays readable, and would keep the loop spinning."""
        asyncio.get_running_loop().remove_reader(ending)
        self.exited.set()

    def record(self, files: OutputFiles, sink: Callable[[bytes], None]) -> None:
        """Keep the whole of its first output in a file, if that exceeds its limit."""
        pipe = self.pipes[0]
        pipe.recorder = OutputRecorder(files, lambda: self._watch_pipes(pipe, sink))

    async def recorded(self) -> OutputFile | None:
        """Return the file with the whole output, closed; None if there is none."""
        recorder, self.pipes[0].recorder = self.pipes[0].recorder, None  # it refers to this command
        return None if recorder is None else await recorder.finish()

    def _watch_pipes(self, pipe: Pipe, sink: Callable[[bytes], None]) -> None:
        if pipe.open:
            loop = asyncio.get_running_loop()
            loop.add_reader(pipe.descriptor, self._on_output, pipe, sink)

    def _on_output(self, pipe: Pipe, sink: Callable[[bytes], None]) -> None:
        data = pipe.read()
        if data:
            sink(data)
        if pipe.recorder is not None and pipe.recorder.is_behind:
            asyncio.get_running_loop().remove_reader(pipe.descriptor)
        if data is None:
            _let_go(pipe)
            if not any(other.open for other in self.pipes):
                self.silent.set()

    def processes(self, table: CommandTable) -> list[int]:
        """Return its live processes: those of its session and those with its marker."""
        return table.of_command(self.process.pid, self.marker)

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Send SIGTERM to its processes, then SIGKILL."""
        await _stop(self.processes, grace_seconds)

    async def drain(self) -> None:
        """Wait briefly for the rest of the output.

        A process that was left behind may hold it open.
        """
        recorder = self.pipes[0].recorder
        while recorder is not None and recorder.is_behind:
            await recorder.caught_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):  # wait_for loses cancellations before 3.12
                await self.silent.wait()

    async def leave_running(self, files: OutputFiles | None) -> LeftRunning | None:
        """Let what it left running go on, and describe that; None when it left nothing.

        Args:
            files: Where what that writes is kept; None drops it.
        """
        self.process.poll()
        pipes = [pipe for pipe in self.pipes if pipe.open]
        if not pipes:
            if _has_processes(self.process.pid):
                await asyncio.sleep(DRAIN_SECONDS)  # it may be about to end
            if not _has_processes(self.process.pid):
                return None
        file = await asyncio.to_thread(RollingFile, files if pipes else None)
        for pipe in pipes:
            asyncio.get_running_loop().remove_reader(pipe.descriptor)
            pipe.read()
        read_on([pipe.hand_over() for pipe in pipes], file)
        left = self.processes(await COMMANDS.look())
        if not left and not pipes:  # it has ended meanwhile
            return None
        named = await asyncio.to_thread(_named, left[:MAX_NAMED_PROCESSES])
        return LeftRunning(processes=named, total=len(left), output_path=file.path)

    def release(self) -> None:
        """Close its descriptors, and reap the process."""
        for pipe in self.pipes:
            if pipe.open:
                pipe.read()
                _let_go(pipe)
        if self._ending is not None:
            asyncio.get_running_loop().remove_reader(self._ending)
            os.close(self._ending)
            self._ending = None
        self.process.poll()


def _named(pids: Sequence[int]) -> tuple[LeftProcess, ...]:
    return tuple(LeftProcess.described(pid, command_line(pid)) for pid in pids)


def _has_processes(group: int) -> bool:
    """Return whether a process group has members: a shell's are in its own, daemons may not be."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _let_go(pipe: Pipe) -> None:
    """Stop listening to a pipe.

    The loop forgets it before it is closed. A closed one would still report events while a
    process that is just being started has a copy, and by then its number may be that of another
    command's pipe.
    """
    asyncio.get_running_loop().remove_reader(pipe.descriptor)
    pipe.close()


def start(launch: Launch) -> RunningCommand:
    """Start a command. It blocks for milliseconds.

    Raises:
        OSError: The command cannot be started.
    """
    pipes = [Pipe(launch.max_output_bytes) for _ in range(1 if launch.merge_stderr else 2)]
    link = launch.link
    stdin = _stdin_descriptor(launch.stdin) if link is None else link.detach()
    try:
        stdout = pipes[0].write_end if link is None else stdin
        process = _opened(launch, stdin, stdout, pipes[-1].write_end)
    except BaseException:
        for pipe in pipes:
            pipe.close()
        raise
    finally:
        os.close(stdin)
        for pipe in pipes:
            os.close(pipe.write_end)
    return RunningCommand(process, pipes, launch.marker)


def _opened(launch: Launch, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    def popen() -> subprocess.Popen[bytes]:
        if launch.confine is not None:
            launch.confine()
        return subprocess.Popen(  # noqa: S603 - running an agent's commands is the purpose
            launch.argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=launch.cwd,
            env={**launch.env, COMMAND_MARKER: launch.marker},
            start_new_session=True,
        )

    if launch.confine is None:
        return popen()
    with ThreadPoolExecutor(1, "command") as thread:
        return thread.submit(popen).result()


async def run(launch: Launch, on_output: OutputSink | None = None) -> Execution:
    """Run a command to its end; a cancelled caller leaves none of its processes behind.

    Background processes of a command that is not killed keep running, and what they write from
    then on is kept in a file.
    """
    started, left_running = time.monotonic(), None
    try:
        current = await _started(launch)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a command"
        message = f"cannot start the command: {reason}\n".encode()
        return Execution(exit_code=127, output=message, total_bytes=len(message))
    stream = _Stream(launch.max_output_bytes, on_output)
    if launch.output_files is not None:
        current.record(launch.output_files, stream.put)
    current.listen(stream.put)
    pumping = asyncio.create_task(stream.pump())
    try:
        timed_out = not await _exits(current, pumping, launch.timeout_seconds)
        if timed_out or launch.link is not None:
            await current.stop()
        await current.drain()
        stream.end()
        await pumping
        if not timed_out and launch.link is None:
            left_running = await current.leave_running(launch.output_files)
    except BaseException:
        await uninterrupted(current.stop(ABANDONED_GRACE_SECONDS))
        raise
    finally:
        pumping.cancel()
        current.release()
        output_file = await asyncio.shield(current.recorded())
    code = current.process.returncode
    first, last = current.pipes[0].kept, current.pipes[-1].kept
    return Execution(
        exit_code=-signal.SIGKILL if code is None else code,
        output=first.content(),
        error_output=b"" if last is first else last.content(),
        total_bytes=first.total_bytes,
        head_bytes=first.head_bytes,
        line_ends=first.line_ends,
        output_file=output_file,
        timed_out=timed_out,
        left_running=left_running,
        seconds=time.monotonic() - started,
    )


async def stop_leftovers(marker: str) -> None:
    """Stop what ended commands left running whose marker begins with `marker`."""
    await _stop(lambda table: table.marked(marker), ABANDONED_GRACE_SECONDS)


async def _stop(find: Callable[[CommandTable], list[int]], grace_seconds: float) -> None:
    ends = time.monotonic() + grace_seconds
    gives_up: float | None = None  # from the first SIGKILL on: a busy machine's looks take seconds
    signal_all(find(await COMMANDS.look()), signal.SIGTERM)
    while found := find(await COMMANDS.look()):
        now = time.monotonic()
        if now >= ends:
            signal_all(found, signal.SIGKILL)
            gives_up = gives_up or now + GIVE_UP_SECONDS
        if gives_up and now >= gives_up:
            return
        await asyncio.sleep(0.02)


async def _exits(
    current: RunningCommand, pumping: asyncio.Task[None], timeout_seconds: float
) -> bool:
    """Wait, and return whether the command ended in time; raise what the sink raises."""
    waiting = asyncio.create_task(current.exited.wait())
    try:
        await asyncio.wait(
            {waiting, pumping}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if pumping.done():
            pumping.result()
    finally:
        waiting.cancel()
    return current.exited.is_set()


async def _started(launch: Launch) -> RunningCommand:
    """Start a command in a thread; if the caller is cancelled, the command is stopped."""
    starting = asyncio.ensure_future(asyncio.to_thread(start, launch))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await uninterrupted(_abandon(starting))
        raise


async def _abandon(starting: asyncio.Future[RunningCommand]) -> None:
    """Stop a command that is being started, once it has started."""
    with contextlib.suppress(OSError, ValueError):
        current = await starting
        await current.stop(ABANDONED_GRACE_SECONDS)
        current.release()


class _Stream:
    """Forwards a command's output to a slow sink; buffers no more than the output limit."""

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


def _stdin_descriptor(content: bytes) -> int:
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("stdin")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
