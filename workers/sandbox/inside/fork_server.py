"""Starts processes by forking one that has made its imports. Standard library only.

A new interpreter takes three times as long, most of it for imports, and a process with threads, as
the steward is, must not fork itself. One process is kept ready, forked and prepared for its work
before anybody asks for it.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import select
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    Work = Callable[["Requester"], int]
    """What a process does: it prepares itself, receives its arguments and does its work; returns
    its exit code."""

_MAX_REQUEST_BYTES = 1 << 16
"""The largest request with a process's arguments: a few paths of at most 4 KiB each."""
_NUMBER_BYTES = 4
"""The bytes of a process id or an exit code, with its sign."""
_PIPE_BYTES = 1 << 20
"""The size of a pipe for output that nobody has read yet: a usual bundle, so that its process need
not wait."""
_NOT_FORKED = 0
"""Sent in place of a process id."""
_QUIET_SECONDS = 0.05
"""Without a request before a process is made ahead: making it takes a processor for as long as the
work of one that is asked for."""


class ForkFailed(Exception):
    """The machine has no process or memory left for another one."""


class ForkedProcess:
    """A running process whose standard output is read here.

    Args:
        pid: its id.
        process: the connection to it, on which it reports its exit code.
        arguments: its arguments.

    Raises:
        OSError: no pipe could be made.
    """

    def __init__(self, pid: int, process: socket.socket, arguments: Sequence[str]) -> None:
        self._pid = pid
        self._process = process
        self._lock = threading.Lock()
        self._has_ended = False
        """Its id may be another's."""
        output, written = os.pipe()
        self.output = os.fdopen(output, "rb")
        try:
            with suppress(OSError):  # not everybody may have one of this size
                fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            message = "\0".join(arguments).encode("utf-8", "surrogateescape")
            with suppress(BrokenPipeError, ConnectionResetError):  # it was killed; see `wait`
                socket.send_fds(process, [message], [written])
        finally:
            os.close(written)

    def wait(self) -> int:
        """Return its exit code once it has ended; negative: the signal that killed it."""
        try:
            data = self._process.recv(_NUMBER_BYTES)
        except ConnectionResetError:  # it was killed
            data = b""
        if data:
            return _number(data)
        with self._lock:
            self._has_ended = True
        return -signal.SIGKILL

    def kill(self) -> None:
        """Kill it, unless it has ended or was closed."""
        with self._lock, suppress(OSError):
            if not self._has_ended:
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and forget it."""
        self.kill()
        with self._lock:
            self._has_ended = True
            self.output.close()
            self._process.close()


class ForkServer:
    """The process that forks. Make it before the first thread."""

    def __init__(self, work: Work, fork: Callable[[], int] = os.fork) -> None:
        """Fork the server.

        Args:
            work: what every process does. Its standard output is read here; the other descriptors
                that it has are this process's, and the server's own.
            fork: makes a process as `os.fork` does.
        """
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        if os.fork() == 0:
            try:
                self._link.close()
                _Server(theirs, work, fork).serve()
            finally:
                os._exit(1)
        theirs.close()

    @contextmanager
    def start(self, arguments: Sequence[str], seconds: float) -> Iterator[ForkedProcess]:
        """Run a process while the context is open; it is killed after so many seconds.

        Args:
            arguments: its arguments, without a NUL.
            seconds: the longest that it runs.

        Raises:
            BrokenPipeError: the server is gone.
            ForkFailed: it could not fork.
        """
        process = ForkedProcess(*self._request(), arguments)
        deadline = threading.Timer(seconds, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.close()

    def _request(self) -> tuple[int, socket.socket]:
        """Ask for a process; return its id and the connection to it."""
        try:
            with self._lock:
                self._link.send(b"\0")
                answer, descriptors, _, _ = socket.recv_fds(self._link, _NUMBER_BYTES, 1)
        except ConnectionResetError:
            answer = b""
        if not answer:  # it took the request, or was to take it, and died
            raise BrokenPipeError(errno.EPIPE, "the fork server is gone")
        if not descriptors:
            raise ForkFailed
        return _number(answer), socket.socket(fileno=descriptors[0])


def _readable(links: list[socket.socket], seconds: float | None = None) -> list[socket.socket]:
    """Wait until one of these has something, or has ended; return which."""
    return select.select(links, (), (), seconds)[0]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _packed(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big", signed=True)


class _Server:
    """What the server does.

    Args:
        link: the connection to the process that requests.
        work: what every process does.
        fork: makes a process.
    """

    def __init__(self, link: socket.socket, work: Work, fork: Callable[[], int]) -> None:
        self._link = link
        self._work = work
        self._fork_process = fork
        self._spare: tuple[int, socket.socket] | None = None
        """A process that waits for its arguments, and the connection to it."""

    def serve(self) -> NoReturn:
        """Hand out a process for each request; exit with the process that requests."""
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes report themselves
        gc.freeze()  # what is imported: a collection in a process would copy all of it
        while True:
            self._wait()
            if not self._link.recv(1):
                os._exit(0)
            self._hand_out()

    def _wait(self) -> None:
        """Wait for a request, with a process ready if there is none for a moment."""
        while True:
            if self._spare is None and not _readable([self._link], _QUIET_SECONDS):
                with suppress(OSError):  # whoever asks for one finds out
                    self._spare = self._fork()
            links = [self._link] if self._spare is None else [self._link, self._spare[1]]
            found = _readable(links)
            if self._spare is not None and self._spare[1] in found:
                self._spare[1].close()  # it has ended: somebody killed it
                self._spare = None
            if self._link in found:
                return

    def _hand_out(self) -> None:
        try:
            pid, process = self._spare or self._fork()
        except OSError:
            self._link.send(_packed(_NOT_FORKED))
            return
        self._spare = None
        with process:
            socket.send_fds(self._link, [_packed(pid)], [process.fileno()])

    def _fork(self) -> tuple[int, socket.socket]:
        process, requester = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with requester:
            try:
                pid = self._fork_process()
            except OSError:
                process.close()
                raise
            if pid == 0:
                process.close()
                self._link.close()
                _run(requester, self._work)
        return pid, process


class Requester:
    """What a process has of the one that requests it.

    Args:
        link: the connection to it.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def fileno(self) -> int:
        """Return the connection's descriptor, which the process must keep."""
        return self._link.fileno()

    def receive(self) -> list[str]:
        """Wait for the arguments. From then on the requester reads the standard output."""
        message, descriptors, _, _ = socket.recv_fds(self._link, _MAX_REQUEST_BYTES, 1)
        if not message:
            os._exit(0)  # nobody is going to ask
        os.dup2(descriptors[0], 1)
        os.close(descriptors[0])
        return message.decode("utf-8", "surrogateescape").split("\0")

    def report(self, code: int) -> None:
        """Report the exit code, and wait until the requester has read it.

        Until then the id of the process means nothing else.
        """
        os.dup2(0, 1)  # closes the output
        with suppress(OSError):  # nobody waits for it any more
            self._link.send(_packed(code))
            while self._link.recv(_MAX_REQUEST_BYTES):
                pass  # what it did not receive; it was killed before


def _run(link: socket.socket, work: Work) -> NoReturn:
    """Do the work, and report its exit code."""
    requester = Requester(link)
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = work(requester)
        requester.report(code)
    finally:
        os._exit(code)
