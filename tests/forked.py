"""Python programs as forks of a server that has imported their modules (`tests/fork_server.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from tests.fork_server import NUMBER

REPOSITORY = Path(__file__).resolve().parent.parent
ADDRESS = "TESTS_FORK_SERVER"
"""The variable with the server's address: all processes of a test run use one server."""

START_SECONDS = 90.0
"""The first start waits for the server's imports."""

_lifelines: list[subprocess.Popen[bytes]] = []
_living: set[ForkedProcess] = set()
"""Kept here, because the server kills a process whose connection is closed."""


def start_fork_server() -> None:
    """Start a server for this process and its children. It ends with this process."""
    address = str(Path(tempfile.mkdtemp(prefix="fork-server-")) / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(listener.fileno())],
            cwd=REPOSITORY,
            env=_without_ours(os.environ),
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    _lifelines.append(server)
    os.environ[ADDRESS] = address


def _without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if not name.startswith("FANOUT_")}
    return kept | {"ADK_SUPPRESS_EXPERIMENTAL_FEATURE_WARNINGS": "true"}


def run_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    folder: Path = REPOSITORY,
    given: bytes = b"",
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a module to its end, as `subprocess.run` does with captured output.

    Raises:
        subprocess.TimeoutExpired: it runs for longer than `timeout` seconds, and is killed.
    """
    pipe = subprocess.PIPE
    child = ForkedProcess(
        module, arguments, environment, folder=folder, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        out, err = child.communicate(given, timeout)
    finally:
        child.kill()
    code = child.wait(timeout)
    return subprocess.CompletedProcess(child.args, code, out.decode(), err.decode())


class ForkedProcess:
    """A forked child with the interface of `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path = REPOSITORY,
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        """Run a module as `python -m` does.

        Args:
            module: what `python -m` is given.
            arguments: the rest of its command line.
            environment: the whole environment.
            folder: the working directory.
            stdin: as for `subprocess.Popen`; `None` is an empty file.
            stdout: as for `subprocess.Popen`.
            stderr: as for `subprocess.Popen`.
        """
        self.args = [module, *arguments]
        self.returncode: int | None = None
        self._reading = threading.Lock()
        request = json.dumps(
            {
                "module": module,
                "arguments": list(arguments),
                "environment": dict(environment),
                "folder": str(folder),
            }
        ).encode()
        with _Files() as files:
            self.stdin = files.input(stdin)
            self.stdout = files.output(stdout, 1)
            self.stderr = files.output(stderr, 2)
            self._connection = _connected()
            socket.send_fds(self._connection, [NUMBER.pack(len(request))], files.theirs)
            self._connection.sendall(request)
        self._connection.settimeout(START_SECONDS)
        self.pid: int = _number(self._connection)
        self._connection.settimeout(None)
        _living.add(self)

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(
        self,
        input: bytes | None = None,  # noqa: A002 - as Popen
        timeout: float | None = None,
    ) -> tuple[bytes, bytes]:
        """Write all input, read all output and wait for the end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        found = {1: b"", 2: b""}

        def read(number: int, stream: IO[bytes]) -> None:
            with stream:
                found[number] = stream.read()

        def write(stream: IO[bytes]) -> None:
            try:
                with stream:
                    stream.write(input or b"")
            except BrokenPipeError:
                pass

        threads = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in ((1, self.stdout), (2, self.stderr))
            if stream is not None and not stream.closed
        ]
        if self.stdin is not None and not self.stdin.closed:
            threads.append(threading.Thread(target=write, args=(self.stdin,), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0, deadline - time.monotonic()))
        return found[1], found[2]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                return None
            with self._reading:
                if self.returncode is None:
                    self.returncode = _number(self._connection)
                    self._connection.close()
                    _living.discard(self)
        return self.returncode


class _Files:
    """The files of a new process: three descriptors for it, and our ends of its pipes."""

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self._opened: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._opened:
            os.close(file)

    def input(self, wanted: int | IO[bytes] | None) -> IO[bytes] | None:
        if wanted == subprocess.PIPE:
            theirs, ours = os.pipe()
            self._add(theirs)
            return os.fdopen(ours, "wb")
        self._add_file(subprocess.DEVNULL if wanted is None else wanted, os.O_RDONLY)
        return None

    def output(self, wanted: int | IO[bytes] | None, number: int) -> IO[bytes] | None:
        if wanted == subprocess.PIPE:
            ours, theirs = os.pipe()
            self._add(theirs)
            return os.fdopen(ours, "rb")
        self._add_file(number if wanted is None else wanted, os.O_WRONLY)
        return None

    def _add(self, file: int) -> None:
        self.theirs.append(file)
        self._opened.append(file)

    def _add_file(self, wanted: int | IO[bytes], flags: int) -> None:
        if wanted == subprocess.DEVNULL:
            self._add(os.open(os.devnull, flags))
        else:
            self.theirs.append(wanted if isinstance(wanted, int) else wanted.fileno())


def _connected() -> socket.socket:
    if ADDRESS not in os.environ:
        start_fork_server()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    return connection


def _number(connection: socket.socket) -> int:
    data = connection.recv(NUMBER.size)
    if not data:
        raise ConnectionError("The fork server is gone.")
    number: int = NUMBER.unpack(data)[0]
    return number
