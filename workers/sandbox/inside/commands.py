"""The resident's commands: starts, reads, times and kills them. Runs inside: see `resident`."""

# This file works with descriptors and /proc, and importing pathlib would cost every start 5 ms:
# ruff: noqa: PTH110, PTH123, PTH208

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

from fanout.orchestrator.portable.command_output import (
    BoundedOutput,
    OutputFiles,
    RollingFile,
    WholeOutput,
)
from fanout.orchestrator.portable.commands import (
    ABANDONED_GRACE_SECONDS,
    COMMAND_MARKER,
    DRAIN_SECONDS,
    GIVE_UP_SECONDS,
    GRACE_SECONDS,
    MAX_COMMAND_LINE,
    MAX_NAMED_PROCESSES,
    find_shell,
)

from . import frames
from .files import take_upload, write_all

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from .files import Upload
    from .loop import Loop

OUTPUT_FOLDER = "/command_output"
"""Where whole outputs are kept: on the job's disk, outside of its workspace."""
MAX_OUTPUT_BYTES = 6 << 20
"""The most that is kept of a command's output; both outputs together fit into a payload."""
MAX_BACKGROUNDS = 64
"""How many ended commands may have processes whose output is still read; the oldest is given up
then. A job has some hundreds of processes, and each command has a pipe and a file. Their files are
at most half of `MAX_OUTPUT_FILES_BYTES`."""
_STARTUP_VARIABLES = ("BASH_ENV", "BASHOPTS", "ENV", "SHELLOPTS")
"""Variables with which an image, or the program that starts it, would change how a shell runs a
command."""
_STOP_ROUNDS = 50
"""After so many rounds of stopping new processes, they are started faster than they can be found:
one by one that takes two or three."""
_MADE_ROOM = (
    b"[There were too many processes to start another one, so those that earlier commands left "
    b"running were killed.]\n"
)
_WORKSPACE = "/workspace"
_PAGE_BYTES = 4096
"""The least that a file takes."""
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def ticks_since_boot() -> int:
    """Return the time in the unit in which the kernel says when a process was started."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def listed_processes() -> Iterator[tuple[int, int, int, int]]:
    """Yield process id, session id, parent and start (see `ticks_since_boot`) of each live process.

    This process is left out.
    """
    own = str(os.getpid())
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == own:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[3]), int(fields[1]), int(fields[19])
        except (OSError, IndexError):
            continue  # it ended meanwhile


def other_processes() -> Iterator[tuple[int, int]]:
    """Yield process id and session id of every live process but this one."""
    for pid, session, _parent, _started in listed_processes():
        yield pid, session


def read_marker(pid: int) -> str:
    """Return the marker of the command that started a process; empty where it has none."""
    beginning = f"{COMMAND_MARKER}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(beginning):
                    return os.fsdecode(variable[len(beginning) :])
    except OSError:
        pass  # it has ended, or is not the job's
    return ""


def list_processes(marker: str, session: int) -> list[int]:
    """Return the live processes of a command: of its session (0: none) or with its marker."""
    return [
        pid
        for pid, its_session in other_processes()
        if (session and its_session == session) or read_marker(pid) == marker
    ]


def command_line(pid: int) -> str:
    """Return what a process was started as, in one line; empty when it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4 * MAX_COMMAND_LINE).rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return ""
    return " ".join(words.decode("utf-8", "replace").split())[:MAX_COMMAND_LINE]


def signal_all(pids: Collection[int], number: int) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def create_output(path: str) -> int:
    """Create a file for an output and return its descriptor; whatever is at its path is refused."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o644)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


class OutputPipe:
    """One output of a running command."""

    def __init__(self, max_bytes: int) -> None:
        self.kept = BoundedOutput.halves(max_bytes)
        self.descriptor, self.write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.open = True
        self.file: WholeOutput | None = None
        """Where it is kept as a whole, if it is."""

    def take(self) -> bytes | None:
        """Return what has arrived; None when nothing has, empty at the end of the stream."""
        try:
            return os.read(self.descriptor, 1 << 18)
        except BlockingIOError:
            return None

    def read(self) -> bytes:
        """Read what has arrived and keep it; closes at the end of the stream."""
        data = self.take()
        if data is None:
            return b""
        if self.file is not None:
            self.file.add(data, self.kept)
        self.kept.add(data)
        if not data:
            self.close()
        return data

    def close(self) -> None:
        """Stop reading."""
        if self.open:
            self.open = False
            os.close(self.descriptor)


def disk_is_full(folder: str) -> bool:
    """Return whether the file system of a folder has no room for another page or file."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _PAGE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


class Run:
    """A running command: its process, its outputs, its time limit."""

    def __init__(self, number: int, arguments: dict[str, Any], oom_kills: int) -> None:
        self.number, self.cap = number, max(0, min(arguments["max_output_bytes"], MAX_OUTPUT_BYTES))
        self.stream, self.streamed = bool(arguments.get("stream")), 0
        self.credits = frames.CHUNKS_IN_FLIGHT
        """How many more parts of its output may be sent to the client."""
        self.is_live = "tunnel" in arguments
        """Its input and output are a tunnel; only its error output is collected."""
        self.output = OutputPipe(self.cap)
        self.errors = None if arguments.get("merge_stderr", True) else OutputPipe(self.cap)
        self.started, self.started_ticks = time.monotonic(), ticks_since_boot()
        self.deadline = self.started + arguments["timeout_seconds"]
        self.oom_kills = oom_kills
        self.pid = 0
        self.exit_code: int | None = None
        self.stopping = self.timed_out = False
        self.killed: set[int] = set()
        """Its processes to which SIGKILL was sent."""
        self.next_step = 0.0
        """When to check it again, once it has ended or is being stopped."""

    @property
    def must_wait(self) -> bool:
        """The client is behind with the output, which is not read meanwhile."""
        return self.stream and self.credits == 0 and self.streamed < self.cap

    @property
    def pipes(self) -> list[OutputPipe]:
        """Its outputs."""
        return [self.output] if self.errors is None else [self.output, self.errors]

    def spawn(
        self,
        arguments: dict[str, Any],
        stdin: int,
        environment: dict[str, str],
        shell: tuple[str, ...],
        make_room: Callable[[], bool],
    ) -> None:
        """Start it; on failure the output has the reason and the exit code is 127.

        The `stdin` of a live one is a socket, which is its output as well. Where there are too many
        processes for another one, `make_room` ends some, and returns whether it could.
        """
        argv = arguments["argv"]
        errors = self.errors or self.output
        start = partial(
            subprocess.Popen,
            [*shell, argv] if isinstance(argv, str) else argv,
            stdin=stdin,
            stdout=stdin if self.is_live else self.output.write_end,
            stderr=errors.write_end,
            cwd=arguments["cwd"],
            env=environment,
            start_new_session=True,
            close_fds=False,  # every descriptor of ours is closed by exec
        )
        try:
            try:
                process = start()
            except BlockingIOError:
                if not make_room():
                    raise
                errors.kept.add(_MADE_ROOM)
                process = start()
            self.pid, process.returncode = process.pid, 0  # its status is taken by `Commands.reap`
        except (OSError, ValueError, IndexError, TypeError, subprocess.SubprocessError) as error:
            what = getattr(error, "filename", None) or (
                argv if isinstance(argv, str) else " ".join(argv[:1])
            )
            reason = getattr(error, "strerror", None) or "not a command"
            errors.kept.add(f"cannot start {what}: {reason}\n".encode("utf-8", "replace"))
            self.exit_code = 127
        finally:
            for pipe in self.pipes:
                os.close(pipe.write_end)


class StoppedCommand:
    """What is remembered of a stopped command, to find its processes."""

    def __init__(self, marker: str, session: int, started_ticks: int) -> None:
        self.marker, self.session, self.started_ticks = marker, session, started_ticks


class Background:
    """What an ended command left running, as long as that may still write.

    Args:
        pipes: the outputs that it holds open.
        file: where they are kept.
    """

    def __init__(self, pipes: list[OutputPipe], file: RollingFile) -> None:
        self.pipes, self.file = pipes, file


class Commands:
    """All running commands."""

    def __init__(self, loop: Loop, *, reap_orphans: bool, oom_score: int | None = None) -> None:
        self._loop, self._reap_orphans = loop, reap_orphans
        self._runs: dict[int, Run] = {}
        self._is_init = os.getpid() == 1
        self._token = os.urandom(6).hex()
        self._stopped: list[StoppedCommand] = []
        """Commands that were stopped while others ran: processes that they left unmarked are killed
        when none runs any more."""
        self._backgrounds: list[Background] = []
        self._environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("FANOUT_", "BASH_FUNC_")) and key not in _STARTUP_VARIABLES
        }
        self._shell = find_shell(self._environment.get("PATH", ""))
        self._oom_path = next((path for path in _OOM_COUNTERS if os.path.exists(path)), None)
        self._oom_score = oom_score
        self._output_files = OutputFiles(OUTPUT_FOLDER, create_output, os.unlink)

    def start(
        self, number: int, arguments: dict[str, Any], payload: bytes, link: int | None = None
    ) -> None:
        """Start the command of a request; its end is the reply.

        Args:
            number: the request's.
            arguments: the request's.
            payload: the standard input.
            link: the socket of a live process.
        """
        environment = dict(self._environment, **arguments.get("env", {}))
        environment[COMMAND_MARKER] = f"{self._token}-{number}"
        run = self._runs[number] = Run(number, arguments, self._oom_kills())
        if arguments.get("keep_output"):
            run.output.file = WholeOutput(self._output_files)
        stdin = stdin_descriptor(take_upload(arguments), payload) if link is None else link
        # the kernel is to kill the job's processes, not this one
        _write_oom_score(self._oom_score, b"800")
        try:
            run.spawn(arguments, stdin, environment, self._shell, self._make_room)
        finally:
            _write_oom_score(self._oom_score, b"0")
            os.close(stdin)
        for pipe in run.pipes:
            self._loop.watch(pipe.descriptor, partial(self._on_output, run, pipe))

    def _make_room(self) -> bool:
        """End what ended commands have left running, if no other command runs; return whether so.

        Otherwise a job whose processes multiply could start nothing any more, not even `kill`.
        """
        if not self._is_init or len(self._runs) > 1:
            return False
        self._kill_everything()
        return True

    def stop(self, number: int) -> None:
        """Stop the command of a request, if it still runs."""
        if number in self._runs:
            self._stop(self._runs[number], ABANDONED_GRACE_SECONDS)

    def credit(self, number: int) -> None:
        """Count one part of a command's output that the client has taken."""
        if number in self._runs:
            self._runs[number].credits += 1

    def watch_outputs(self) -> None:
        """Watch the outputs whose client is not behind."""
        for run in self._runs.values():
            is_read = not (self._loop.is_stalled or run.must_wait)
            for pipe in run.pipes:
                if not pipe.open:  # its descriptor may be another's by now
                    continue
                if is_read:
                    self._loop.watch(pipe.descriptor, partial(self._on_output, run, pipe))
                else:  # its end would be reported forever, whatever the events
                    self._loop.forget(pipe.descriptor)

    def advance(self, now: float) -> float:
        """Take every step that is due; return the time of the next one."""
        for run in list(self._runs.values()):
            self._advance_run(run, now)
        steps = (
            max(run.next_step, now) if run.next_step else run.deadline
            for run in self._runs.values()
        )
        return min(steps, default=now + 60)

    def reap(self) -> None:
        """Collect the exit status of ended children."""
        for run in self._runs.values():
            if run.exit_code is None and run.pid:
                self._collect(run.pid)
        while self._reap_orphans and self._collect(-1):
            pass

    def end(self) -> bool:
        """Kill everything at once; return whether certainly no other process is left."""
        if self._is_init:
            self._kill_everything()
        for run in self._runs.values():
            signal_all(list_processes(self._marker(run), run.pid), signal.SIGKILL)
        return self._is_init and next(other_processes(), None) is None

    def _marker(self, run: Run) -> str:
        return f"{self._token}-{run.number}"

    def _on_output(self, run: Run, pipe: OutputPipe, _events: int = 0) -> bytes:
        data = pipe.read()
        if not pipe.open:
            self._loop.forget(pipe.descriptor)
        if run.stream and data and run.streamed < run.cap and run.credits > 0:
            part = data[: run.cap - run.streamed]
            run.streamed += len(part)
            run.credits -= 1
            self._loop.send(frames.MORE, run.number, None, part)
        return data

    def _collect(self, wanted: int) -> bool:
        """Collect one ended child's status; return whether there was one."""
        try:
            pid, status = os.waitpid(wanted, os.WNOHANG)
        except ChildProcessError:
            return False
        for run in self._runs.values():
            if pid and run.pid == pid:
                run.exit_code = (
                    -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                )
                run.next_step = time.monotonic() + (0.0 if run.stopping else DRAIN_SECONDS)
        return pid != 0

    def _advance_run(self, run: Run, now: float) -> None:
        if run.stopping:
            self._advance_stop(run, now)
        elif run.exit_code is not None:
            if run.is_live and run.pid:
                self._stop(run)  # processes that it left behind are killed
            elif not any(pipe.open for pipe in run.pipes) and not self._left_by(run):
                self._finish(run)
            elif self._loop.is_stalled or run.must_wait:  # its output has not been read yet
                run.next_step = now + DRAIN_SECONDS
            elif now >= run.next_step:
                self._finish(run)
        elif now >= run.deadline:
            run.timed_out = True
            self._stop(run)

    def _stop(self, run: Run, grace_seconds: float = GRACE_SECONDS) -> None:
        """Send SIGTERM to a command's processes; `_advance_stop` follows up with SIGKILL."""
        if not run.stopping:
            now = time.monotonic()
            run.stopping, run.deadline, run.next_step = True, now + grace_seconds, now + 0.02
            signal_all(list_processes(self._marker(run), run.pid), signal.SIGTERM)

    def _advance_stop(self, run: Run, now: float) -> None:
        if now < run.next_step:
            return
        run.next_step = now + 0.05
        has_ended = run.exit_code is not None and not list_processes(self._marker(run), run.pid)
        if not has_ended and now < run.deadline:
            return
        is_late = now >= run.deadline + GIVE_UP_SECONDS
        if (self._exterminate(run) and run.exit_code is not None) or is_late:
            self._finish(run)

    def _exterminate(self, run: Run) -> bool:
        """Kill what a stopped command left behind; return whether all of it has vanished.

        Only PID 1 can kill daemons that have neither its session nor its marker. A live process
        ends in the ordinary course of a job: daemons of earlier commands are not killed then.
        """
        if self._is_init and len(self._runs) == 1 and not run.is_live:
            self._kill_processes([self._remembered(run)])
            return True
        for _round in range(5):
            left = list_processes(self._marker(run), run.pid)
            signal_all(left, signal.SIGKILL)
            if run.killed.issuperset(left):  # on a busy machine they take a while to vanish
                return not left
            run.killed.update(left)
            time.sleep(0.002)
            self.reap()
        if self._is_init:  # it forks faster than its processes can be killed one by one
            self._kill_everything()
        return True

    def _remembered(self, run: Run) -> StoppedCommand:
        return StoppedCommand(self._marker(run), run.pid, run.started_ticks)

    def _kill_processes(self, commands: list[StoppedCommand]) -> None:
        """Kill all processes but those that ended commands have left running.

        They are stopped before, so that none starts another one meanwhile. If there are none to be
        spared, or new ones are started faster than they are found, everything is killed.
        """
        stopped: set[int] = set()
        for _round in range(_STOP_ROUNDS):
            spared, found = self._divided(commands)
            if not spared:
                break
            new = found - stopped
            if not new:
                self._kill_until_gone(lambda: self._divided(commands)[1], found)
                return
            signal_all(new, signal.SIGSTOP)
            stopped |= new
        self._kill_everything()

    def _divided(self, commands: list[StoppedCommand]) -> tuple[set[int], set[int]]:
        """Return the processes that ended commands left running, and those of stopped commands.

        One without a mark is of an ended command if it was started before these commands were, or
        by another one that is. A kernel that does not say when counts as started by these.
        """
        markers = {command.marker for command in commands}
        sessions = {command.session for command in commands}
        began = min(command.started_ticks for command in commands)
        earlier: set[int] = set()
        theirs: set[int] = set()
        for pid, session, parent, started in sorted(listed_processes(), key=lambda each: each[3]):
            marker = read_marker(pid)
            if session in sessions or marker in markers:
                theirs.add(pid)
            elif 0 < started < began or parent in earlier or marker.startswith(self._token):
                earlier.add(pid)
            else:
                theirs.add(pid)
        return earlier, theirs

    def _kill_everything(self) -> None:
        """Kill all other processes of this container, atomically and without a new process."""
        self._kill_until_gone(lambda: [-1] if next(other_processes(), None) else [], [-1])
        self._stopped.clear()

    def _kill_until_gone(self, find: Callable[[], Collection[int]], left: Collection[int]) -> None:
        for _round in range(400):
            signal_all(left, signal.SIGKILL)
            self.reap()
            left = find()
            if not left:
                break
            time.sleep(0.005)

    def _finish(self, run: Run) -> None:
        for pipe in run.pipes:
            for _part in range(16):  # more than a pipe holds; a process may write for ever
                if not pipe.open or not self._on_output(run, pipe):
                    break
            if pipe.open:
                self._loop.forget(pipe.descriptor)
        del self._runs[run.number]
        file = run.output.file
        if file is not None:
            file.close()
        output, errors = run.output.kept.content(), run.errors.kept.content() if run.errors else b""
        result = {
            "exit_code": -signal.SIGKILL if run.exit_code is None else run.exit_code,
            "output_bytes": len(output),
            "total_bytes": run.output.kept.total_bytes,
            "head_bytes": run.output.kept.head_bytes,
            "line_ends": run.output.kept.line_ends,
            "output_file": _name(file.path) if file is not None and file.size_bytes else "",
            "output_file_bytes": file.size_bytes if file is not None else 0,
            "timed_out": run.timed_out,
            "out_of_memory": self._oom_kills() > run.oom_kills,
            "disk_is_full": disk_is_full(_WORKSPACE),
            "seconds": time.monotonic() - run.started,
            **self._left_running(run),
        }
        if run.stopping and not run.is_live and self._is_init:
            self._stopped.append(self._remembered(run))
        if self._stopped and not self._runs:
            self._kill_processes(self._stopped)
            self._stopped.clear()
        self._loop.send(frames.REPLY, run.number, {"result": result}, output + errors)

    def _left_running(self, run: Run) -> dict[str, Any]:
        """Let what an ended command started go on, and return what the result says of it."""
        pipes = [pipe for pipe in run.pipes if pipe.open]
        if run.stopping or not run.pid:
            for pipe in pipes:
                pipe.close()
            return {"left": [], "left_processes": 0, "left_output": ""}
        file = self._record(pipes) if pipes else None
        left = self._left_by(run)
        named = [[pid, command_line(pid)] for pid in left[:MAX_NAMED_PROCESSES]]
        return {
            "left": named,
            "left_processes": len(left),
            "left_output": _name(file.path) if file is not None else "",
        }

    def _left_by(self, run: Run) -> list[int]:
        return list_processes(self._marker(run), run.pid) if run.pid else []

    def _record(self, pipes: list[OutputPipe]) -> RollingFile:
        """Read what an ended command's processes write from now on into a file."""
        for pipe in pipes:
            pipe.kept, pipe.file = BoundedOutput(tail_bytes=0), None  # they are in the result
        background = Background(pipes, RollingFile(self._output_files))
        self._backgrounds.append(background)
        for pipe in pipes:
            self._loop.watch(pipe.descriptor, partial(self._on_background, background, pipe))
        if len(self._backgrounds) > MAX_BACKGROUNDS:
            oldest = self._backgrounds[0]
            for pipe in list(oldest.pipes):
                self._close_background(oldest, pipe)
        return background.file

    def _on_background(self, background: Background, pipe: OutputPipe, _events: int = 0) -> None:
        data = pipe.take()
        if data:
            background.file.add(data)
        elif data is not None:
            self._close_background(background, pipe)

    def _close_background(self, background: Background, pipe: OutputPipe) -> None:
        self._loop.forget(pipe.descriptor)
        pipe.close()
        background.pipes.remove(pipe)
        if not background.pipes:
            background.file.close()
            self._backgrounds.remove(background)

    def _oom_kills(self) -> int:
        """Return how many processes of this container the kernel has killed for memory."""
        if self._oom_path is None:
            return 0
        try:
            with open(self._oom_path, "rb") as file:
                kills = (int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
                return next(kills, 0)
        except (OSError, ValueError):
            return 0


def stdin_descriptor(upload: Upload | None, payload: bytes) -> int:
    """Return a descriptor from which a command reads its input."""
    if upload is not None:
        try:
            return os.open(f"/proc/self/fd/{upload.descriptor}", os.O_RDONLY)
        finally:
            upload.remove()
    if not payload:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("stdin")
    write_all(descriptor, payload)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write_oom_score(descriptor: int | None, score: bytes) -> None:
    if descriptor is not None:
        with suppress(OSError):  # lower than at the start, where the engine set the score
            os.pwrite(descriptor, score, 0)
