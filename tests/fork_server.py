"""A server that forks Python programs from one process that has imported what they import.

A start costs one to three seconds of processor time, nearly all of it imports, and a suite starts
some hundred workers and commands. A fork runs the same module with its own arguments, environment,
folder, output and session. `tests/forked.py` is the client; each connection is one process:

- The client sends the size of a request, with three file descriptors (stdin, stdout, stderr), and
  the request as JSON.
- The server answers with the process id, and with the exit status once the process has ended.
- The process is killed when its client closes the connection or ends before.

The server ends, with all that it forked, when its own stdin is closed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

NUMBER = struct.Struct("!i")
BROKEN_OUTPUT = 120
"""Python's exit status when its standard output cannot be flushed."""

COMMAND_MODULES = (
    "apply",
    "approving",
    "configuration",
    "diff",
    "doctor",
    "examples",
    "environment",
    "images",
    "init",
    "inspection",
    "processes",
    "run",
    "submission",
    "waiting",
)
PRELOADED = (
    "fanout.orchestrator.cli.app",
    "fanout.workers.celery_app",
    "fanout.workers.execution",
    # What a command imports when it is called.
    *(f"fanout.orchestrator.cli.commands.{name}" for name in COMMAND_MODULES),
    "fanout.orchestrator.cli.failure_report",
    # What follows is imported late, by every worker or run all the same.
    "celery.apps.worker",
    "celery.bin.celery",
    "google.adk.runners",
    "google.adk.workflow._workflow",
    "fanout.orchestrator.adk.job_agent",
)


class Server:
    """Accepts requests, forks, and reports how each process ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._awake, wakes = socket.socketpair()
        for one in (self._awake, wakes):
            one.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakes = wakes
        self._loaded = False

    def serve(self) -> None:
        """Serve until stdin is closed. Returns in no forked process."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._awake:
                    self._awake.recv(4096)
                    self._report()
                else:
                    self._abandon(key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if not self._loaded:
            load()
            self._loaded = True
        header, files, _, _ = socket.recv_fds(client, NUMBER.size, 3)
        if not header:  # it has gone again without a request
            client.close()
            return
        request = json.loads(_received(client, NUMBER.unpack(header)[0]))
        pid = os.fork()
        if pid == 0:
            self._leave(client)
            run(request, files)
        for file in files:
            os.close(file)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)
        with suppress(OSError):
            client.sendall(NUMBER.pack(pid))

    def _report(self) -> None:
        """Report every process that has ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                client = self._clients.pop(pid)
                with suppress(KeyError):  # the client has closed it before
                    self._selector.unregister(client)
                with client, suppress(OSError):
                    client.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))

    def _abandon(self, pid: int) -> None:
        """Kill a process whose client is gone."""
        if pid in self._clients:
            self._selector.unregister(self._clients[pid])
            os.kill(pid, signal.SIGKILL)

    def _leave(self, client: socket.socket) -> None:
        """Close in a forked process what belongs to the server."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for one in (client, self._listener, self._awake, self._wakes, *self._clients.values()):
            one.close()

    def _end(self) -> None:
        for pid in self._clients:
            os.kill(pid, signal.SIGKILL)
        address = Path(self._listener.getsockname())
        address.unlink()
        address.parent.rmdir()


def load() -> None:
    """Import what most programs import, and keep it out of the garbage collector's way."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Do what `python -m module arguments` does, then end this process."""
    _become(request, files)
    code = _run_module(request["module"])
    with suppress(KeyboardInterrupt):
        threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored while flushing sys.stdout: {error!r}", file=sys.stderr)
        code = BROKEN_OUTPUT
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take over the session, signals, files, folder, environment and arguments of a new process."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    _open_streams()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # it is read from the environment once
    sys.argv = [request["module"], *request["arguments"]]


def _open_streams() -> None:
    """Open the standard streams anew: the old ones know what the server's files can do."""
    by_line = 1 if os.isatty(1) else -1
    for name, opened in (
        ("stdin", open(0, closefd=False)),  # noqa: SIM115 - open as long as the process lives
        ("stdout", open(1, "w", by_line, closefd=False)),  # noqa: SIM115 - as above
        ("stderr", open(2, "w", 1, errors="backslashreplace", closefd=False)),  # noqa: SIM115
    ):
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)


def _run_module(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def _received(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who use it
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()
