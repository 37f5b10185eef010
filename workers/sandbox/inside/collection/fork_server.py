"""Starts processes by forking one that has made its imports. Standard library only.

A new interpreter takes three times as long, most of it for imports, and a process with threads, as
the steward is, must not fork itself. A fork takes a millisecond or two, and there is one for each
process. A process that goes on in a child of its own stays and reports how that one has ended.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    Work = Callable[[list[str]], int]
    """What a process does with its arguments; returns its exit code. It may return in a child of
    the process too, which ends with that code then."""

_MAX_REQUEST_BYTES = 1 << 16
"""Of a process's arguments: a few paths of at most 4 KiB each."""
_NUMBER_BYTES = 4
"""Of a process id or an exit code, with its sign."""
_PIPE_BYTES = 1 << 20
"""Of output that nobody has read yet: a usual bundle, so that its process need not wait."""
_NOT_FORKED = 0
"""Reported in place of a process id."""


class ForkFailed(Exception):
    """The machine has no process or memory left for another one."""


class ForkedProcess:
    """A running process whose standard output is read here."""

    def __init__(self, output: int, process: socket.socket) -> None:
        self.output = os.fdopen(output, "rb")
        self._process = process
        self._lock = threading.Lock()
        self._is_closed = False
        self._pid = _receive(process)
        if self._pid == _NOT_FORKED:
            raise ForkFailed

    def wait(self) -> int:
        """Return its exit code once it has ended; negative: the signal that killed it."""
        try:
            return _receive(self._process)
        except ConnectionResetError:  # it was killed
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
            self._process.close()


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
        with suppress(OSError):  # not everybody may have one of this size
            fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process, theirs = socket.socketpair()
        try:
            with self._lock:
                message = "\0".join(arguments).encode("utf-8", "surrogateescape")
                socket.send_fds(self._link, [message], [written, theirs.fileno()])
        finally:
            os.close(written)
            theirs.close()
        return output, process


def _receive(link: socket.socket) -> int:
    """Return a number; raises ConnectionResetError when the other side is gone."""
    data = link.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
    if len(data) < _NUMBER_BYTES:
        raise ConnectionResetError("the process is gone")
    return int.from_bytes(data, "big", signed=True)


def _serve(link: socket.socket, work: Work) -> NoReturn:
    """Fork a process for each request; exit with the process that requests."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes report themselves
    gc.freeze()  # what is imported: a collection in a process would copy all of it
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, _MAX_REQUEST_BYTES, 2)
        if not message:
            os._exit(0)
        arguments = message.decode("utf-8", "surrogateescape").split("\0")
        output, report = descriptors
        try:
            if os.fork() == 0:
                link.close()
                _run(output, report, work, arguments)
        except OSError:
            _report(socket.socket(fileno=os.dup(report)), _NOT_FORKED)
        for descriptor in descriptors:
            os.close(descriptor)


def _report(requester: socket.socket, number: int) -> None:
    with suppress(OSError):  # it waits no more
        requester.sendall(number.to_bytes(_NUMBER_BYTES, "big", signed=True))


def _run(output: int, report: int, work: Work, arguments: list[str]) -> NoReturn:
    """Do the work, and report this process's id and its exit code.

    Stays until the report has been read, so that its id means nothing else until then.
    """
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requester = socket.socket(fileno=report)
        process = os.getpid()
        _report(requester, process)
        os.dup2(output, 1)
        os.close(output)
        code = work(arguments)
        if os.getpid() == process:
            os.dup2(0, 1)  # closes the output
            _report(requester, code)
            requester.recv(1)
    finally:
        os._exit(code)
