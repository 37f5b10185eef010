"""The processes of this machine as `/proc` has them, and which command has started each.

The kernel reads an environment from the process's memory, and waits while its map is changed. This
takes microseconds, but as long as its disk lets the process wait: a slow or hostile one could keep
the commands of all others from being stopped, so no read waits long. One look at all processes is
shared by all who ask at the same time: when hundreds of commands are stopped at once, a look for
each of them would take minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from ...portable.commands import COMMAND_MARKER

_READ_BYTES = 64 * 1024
"""More than nearly every file of a process has, so that one read is enough."""

STUCK_SECONDS = 0.25
"""How long the kernel may wait for one process: a cancelled job has two seconds for its end."""

NEXT_STUCK_SECONDS = 0.05
"""The same for each further one of a look: what holds one process may hold a hundred."""

_stuck: set[int] = set()
"""Those processes for which a thread still waits; their environments count as empty until then."""

Seen = TypeVar("Seen")

_MAX_LISTINGS = 20
"""The most listings in a look. Each has fewer new processes than the one before, unless they are
started faster than they are read. Then those that were seen must be killed first."""


def content(path: str) -> bytes:
    """Return the content of a small file; empty when it cannot be read.

    A look reads thousands: this takes half of the time and of the system calls of `Path`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = b""
    try:
        while part := os.read(descriptor, _READ_BYTES):
            parts += part
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return parts


def command_line(pid: int) -> bytes:
    """Return what a process was started as, its words ended by NUL; empty when it has ended.

    It blocks, also in the kernel as reading an environment does: call it after a look, and not for
    long lists. It is empty for a process at which a thread is stuck.
    """
    return b"" if pid in _stuck else content(f"/proc/{pid}/cmdline")


class GivenUp(Exception):
    """Nobody waits for this thread any more."""


class EnvironmentReader:
    """Reads environments in one thread; other threads can see whether it is stuck."""

    def __init__(self) -> None:
        self._thread = 0
        self._pid = 0
        self._since = 0.0
        self._is_given_up = False
        self._lock = threading.Lock()

    def read(self, pid: int) -> bytes:
        """Return a process's environment as the kernel has it; empty when the process has ended.

        It is also empty while another thread is stuck at it. Then the session, the limits, the
        mounts and the folder of the process still say whose it is.

        Raises:
            GivenUp: `give_up_if_stuck` was true.
        """
        if pid in _stuck:
            return b""
        self._thread, self._since, self._pid = threading.get_native_id(), time.monotonic(), pid
        environment = content(f"/proc/{pid}/environ")
        with self._lock:
            self._pid = 0
            if self._is_given_up:
                _stuck.discard(pid)
                raise GivenUp
        return environment

    def give_up_if_stuck(self, seconds: float) -> bool:
        """Return whether the thread is stuck: it ends when it can, and others pass its process by.

        On a busy machine a thread may wait as long for a processor; that one is not stuck.

        Args:
            seconds: How long it may wait for one process.
        """
        with self._lock:
            pid, waited = self._pid, time.monotonic() - self._since
            if pid and waited >= seconds and self._waits_in_the_kernel():
                self._is_given_up = True
                _stuck.add(pid)
        return self._is_given_up

    def _waits_in_the_kernel(self) -> bool:
        stat = content(f"/proc/self/task/{self._thread}/stat")
        return stat.rpartition(b")")[2].split(maxsplit=1)[:1] == [b"D"]


class SharedLooks(Generic[Seen]):
    """One kind of look, one at a time; each is followed by a rest of its own processor time.

    Looks without rests would take the interpreter from those who wait for them, and killed
    processes need a moment to vanish.

    Args:
        look: Looks; it blocks.
    """

    def __init__(self, look: Callable[[EnvironmentReader], Seen]) -> None:
        self._look = look
        self._next: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Seen]] = (
            WeakKeyDictionary()
        )
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._rests_until: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()

    async def look(self) -> Seen:
        """Return what a look sees that begins after this call; a cancelled caller ends no look."""
        loop = asyncio.get_running_loop()
        waiting = self._next.get(loop)
        if waiting is None:
            waiting = self._next[loop] = loop.create_task(self._look_in_turn(loop))
        return await asyncio.shield(waiting)

    async def _look_in_turn(self, loop: asyncio.AbstractEventLoop) -> Seen:
        async with self._turns.setdefault(loop, asyncio.Lock()):
            await asyncio.sleep(self._rests_until.get(loop, 0.0) - loop.time())
            del self._next[loop]  # who asks from now on may have started something since
            seen, seconds = await self._seen()
            self._rests_until[loop] = loop.time() + seconds
            return seen

    async def _seen(self) -> tuple[Seen, float]:
        """Return what a look sees, and its processor time in seconds.

        A look that is stuck at a process is begun again, and passes that one by. Each has a thread
        of its own that the end of the program does not wait for.
        """
        patience = STUCK_SECONDS
        while True:
            environments, answer = EnvironmentReader(), Future[tuple[Seen, float]]()
            answer.set_running_or_notify_cancel()
            arguments = environments, answer
            try:
                threading.Thread(target=self._answer, args=arguments, daemon=True).start()
            except RuntimeError:  # no process is left to this user: the look is to kill some
                self._answer(*arguments)
            waiting = asyncio.wrap_future(answer)
            while not (waiting.done() or environments.give_up_if_stuck(patience)):
                await asyncio.wait([waiting], timeout=patience)
            if waiting.done():
                return waiting.result()
            patience = NEXT_STUCK_SECONDS

    def _answer(self, environments: EnvironmentReader, answer: Future[tuple[Seen, float]]) -> None:
        began = time.thread_time()
        try:
            seen = self._look(environments)
        except GivenUp:
            return
        except Exception as error:  # noqa: BLE001 - raised where the look is awaited
            answer.set_exception(error)
        else:
            answer.set_result((seen, time.thread_time() - began))


@dataclass(frozen=True)
class CommandTable:
    """The live processes of this machine except this one."""

    by_session: dict[int, list[int]]
    by_marker: dict[str, list[int]]

    def of_command(self, session: int, marker: str) -> list[int]:
        """Return the processes of a session, and those with a marker."""
        found = self.by_session.get(session, []) + self.by_marker.get(marker, [])
        return list(dict.fromkeys(found))

    def marked(self, beginning: str) -> list[int]:
        """Return the processes whose marker begins with a text."""
        every = self.by_marker.items()
        return [pid for marker, pids in every if marker.startswith(beginning) for pid in pids]


def _look(environments: EnvironmentReader) -> CommandTable:
    by_session: dict[int, list[int]] = defaultdict(list)
    by_marker: dict[str, list[int]] = defaultdict(list)
    for pid, session in other_processes():
        by_session[session].append(pid)
        if marker := read_variable(environments.read(pid), COMMAND_MARKER):
            by_marker[marker].append(pid)
    return CommandTable(by_session, by_marker)


COMMANDS = SharedLooks(_look)
"""Looks for the processes of commands."""


def other_processes() -> Iterator[tuple[int, int]]:
    """Yield the process id and session id of every live process except this one.

    A process may start another one and end before it is read. So they are listed again until none
    is new. A caller that reads each one at once sees at least one of a family, if any is alive.
    """
    listed = {str(os.getpid())}
    for _ in range(_MAX_LISTINGS):
        new = [name for name in os.listdir("/proc") if name.isdigit() and name not in listed]  # noqa: PTH208 - see `content`
        if not new:
            return
        listed.update(new)
        for name in new:
            fields = content(f"/proc/{name}/stat").rpartition(b")")[2].split(maxsplit=4)
            if fields and fields[0] not in {b"Z", b"X"}:  # else it has ended
                yield int(name), int(fields[3])


def read_variable(environment: bytes, name: str) -> str:
    """Return the value of a variable; empty without it."""
    beginning = f"{name}=".encode()
    at = 0 if environment.startswith(beginning) else environment.find(b"\0" + beginning) + 1
    if at == 0 and not environment.startswith(beginning):
        return ""
    return os.fsdecode(environment[at + len(beginning) :].partition(b"\0")[0])


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
