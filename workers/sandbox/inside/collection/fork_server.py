"""Starts processes by forking one that has made its imports. Standard library only.

A new interpreter takes three times as long, most of it for imports, and a process with threads, as
the steward is, must not fork itself. The server forks a supervisor for each process, and that one
the process; a supervisor that is killed takes its process with it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fanout.workers.sandbox.inside import disks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    Work = Callable[[list[str]], int]
    """What a process does with its arguments; returns its exit code."""

_MAX_REQUEST_BYTES = 1 << 16
"""Of a process's arguments: a few paths of at most 4 KiB each."""
_NUMBER_BYTES = 4
"""Of a process id or an exit code, with its sign."""
_PR_SET_PDEATHSIG = 1
_NOT_FORKED = 0
"""Reported in place of a process id."""


class ForkFailed(Exception):
    """The machine has no process or memory left for another one."""


class ForkedProcess:
    """A running process whose standard output is read here."""

    def __init__(self, output: int, supervisor: socket.socket) -> None:
        self.output = os.fdopen(output, "rb")
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._is_closed = False
        self._pid = _receive(supervisor)
        if self._pid == _NOT_FORKED:
            raise ForkFailed

    def wait(self) -> int:
        """Return its exit code once it has ended; negative: the signal that killed it."""
        try:
            return _receive(self._supervisor)
        except ConnectionResetError:  # `kill` ended its supervisor
            return -signal.SIGKILL

    def kill(self) -> None:
        """Kill it, unless it has ended or was closed."""
        with self._lock, suppress(OSError):
            if not self._is_closed:  # else its id may be another's
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and forget it."""
        self.kill()
        with self._lock:
            self._is_closed = True
            self.output.close()
            self._supervisor.close()


class ForkServer:
    """The process that forks. Make it before the first thread."""

    def __init__(self, work: Work) -> None:
        """Fork the server.

        Args:
            work: what every process does. Its standard output is read here; the other descriptors
                that it has are this process's, and the server's own.
        """
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        if os.fork() == 0:
            try:
                self._link.close()
                _serve(theirs, work)
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
        try:
            process = ForkedProcess(*self._request(arguments))
        except ConnectionResetError as error:  # it took the request, or was to take it, and died
            raise BrokenPipeError(errno.EPIPE, "the fork server is gone") from error
        deadline = threading.Timer(seconds, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.close()

    def _request(self, arguments: Sequence[str]) -> tuple[int, socket.socket]:
        output, written = os.pipe()
        supervisor, theirs = socket.socketpair()
        try:
            with self._lock:
                message = "\0".join(arguments).encode("utf-8", "surrogateescape")
                socket.send_fds(self._link, [message], [written, theirs.fileno()])
        finally:
            os.close(written)
            theirs.close()
        return output, supervisor


def _receive(link: socket.socket) -> int:
    """Return a number; raises ConnectionResetError when the other side is gone."""
    data = link.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
    if len(data) < _NUMBER_BYTES:
        raise ConnectionResetError("the process's supervisor is gone")
    return int.from_bytes(data, "big", signed=True)


def _serve(link: socket.socket, work: Work) -> NoReturn:
    """Fork a supervisor for each request; exit with the process that requests."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors report themselves
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, _MAX_REQUEST_BYTES, 2)
        if not message:
            os._exit(0)
        arguments = message.decode("utf-8", "surrogateescape").split("\0")
        output, report = descriptors
        try:
            if os.fork() == 0:
                link.close()
                _supervise(output, report, work, arguments)
        except OSError:
            _report(socket.socket(fileno=os.dup(report)), _NOT_FORKED)
        for descriptor in descriptors:
            os.close(descriptor)


def _report(requester: socket.socket, number: int) -> None:
    with suppress(OSError):  # it waits no more
        requester.sendall(number.to_bytes(_NUMBER_BYTES, "big", signed=True))


def _supervise(output: int, report: int, work: Work, arguments: list[str]) -> NoReturn:
    """Fork the process, and report its id and its exit code.

    Stays until the report has been read, so that its own id means nothing else until then.
    """
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requester = socket.socket(fileno=report)
        supervisor = os.getpid()
        try:
            child = os.fork()
        except OSError:
            _report(requester, _NOT_FORKED)
            os._exit(1)
        if child == 0:
            _work(output, supervisor, work, arguments)
        os.close(output)
        _report(requester, supervisor)
        _report(requester, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        requester.recv(1)
    finally:
        os._exit(0)


def _work(output: int, supervisor: int, work: Work, arguments: list[str]) -> NoReturn:
    code = 1
    try:
        disks.call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.dup2(output, 1)
        if os.getppid() == supervisor:  # else it was killed before it could take this one along
            code = work(arguments)
    finally:
        os._exit(code)
