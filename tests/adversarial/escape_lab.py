"""A laboratory for escapes: a sandbox of the product's own, hardened as in production, and a
neighbour of the same worker, engine and steward."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import SandboxDied
from fanout.workers.sandbox.protocol import Command, Sandbox, nobody
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec
from tests.waits import eventually_in_thread

T = TypeVar("T")

CANARY = "what the neighbour keeps"

PRELUDE = r"""
import ctypes, errno, os, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def syscall(number, *arguments):
    as_long = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *as_long)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def refused(call, *arguments):
    try:
        result = call(*arguments)
    except OSError as error:
        print("REFUSED", errno.errorcode.get(error.errno), flush=True)
    else:
        print("OUT", result, flush=True)

def write(path, data=b"1"):
    with open(path, "wb", buffering=0) as file:
        file.write(data)

def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.read(16)
"""


class Lab:
    """Runs attempts from synchronous tests; its loop has a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = AsyncExitStack()
        self._snapshots = SnapshotFolder(folder)
        self.installation = f"test-{secrets.token_hex(4)}"
        self.provider: DockerProvider
        self.sandbox: Sandbox
        self.neighbour: Sandbox

    def start(self) -> None:
        self._thread.start()
        self.do(self._open())

    async def _open(self) -> None:
        self.provider = DockerProvider(
            self._snapshots.fetch, installation=self.installation, worker="w"
        )
        self.neighbour = await self._stack.enter_async_context(
            self.provider.open(make_sandbox_spec())
        )
        await self.neighbour.write_bytes("/workspace/canary", CANARY.encode())
        self.sandbox = await self._fresh()

    async def _fresh(self) -> Sandbox:
        return await self._stack.enter_async_context(self.provider.open(make_sandbox_spec()))

    def stop(self) -> None:
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self._stack.aclose()
        await self.provider.reap(nobody)
        await self.provider.close()

    def do(self, work: Coroutine[Any, Any, T], seconds: float = 60) -> T:
        """Carry out something in the lab's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def shell(self, program: str, seconds: float = 20, **options: Any) -> str:
        """Run a shell's program in the sandbox; return its output."""
        command = Command(argv=program, timeout_seconds=seconds, **options)
        return self.do(self.sandbox.run(command)).output.decode(errors="replace")

    def python(self, program: str, seconds: float = 20, **options: Any) -> str:
        """Run a Python program with the helpers of `PRELUDE`; return its output."""
        argv = ["python3", "-c", PRELUDE + program]
        command = Command(argv=argv, timeout_seconds=seconds, **options)
        return self.do(self.sandbox.run(command)).output.decode(errors="replace")

    def changes(self) -> dict[str, str]:
        """Path and kind of each change of the sandbox."""
        return dict(self.do(changed_paths(self.sandbox)))

    def check_all_is_well(self) -> None:
        """The sandbox (or a fresh one) and its neighbour answer, unharmed."""
        if not self._sandbox_answers():  # its own job may exhaust it
            self.renew()
            assert self._sandbox_answers()
        found = self.do(self.neighbour.run(Command(argv="ls -A; cat canary")))
        assert found.output.decode() == f"canary\n{CANARY}"

    def _sandbox_answers(self) -> bool:
        with suppress(SandboxDied):
            return self.shell("echo alive") == "alive\n"
        return False

    def renew(self) -> None:
        """Leave this sandbox to itself and go on in a fresh one."""
        self.sandbox = self.do(self._fresh())

    def exhaust(self, program: str, seconds: float = 1) -> None:
        """Run a Python program that may take everything from its own sandbox, also its life."""
        with suppress(SandboxDied):
            self.python(program, seconds)

    def until_it_has_room(self) -> None:
        """Wait until the processes of an attack before have gone, so that a command can start."""
        eventually_in_thread(
            lambda: self.do(self.sandbox.run(Command(argv=["true"]))).exit_code == 0
        )

    def check_steward_is_well(self) -> None:
        """The steward still tells the neighbour's changes."""
        assert self.do(changed_paths(self.neighbour)) == [("canary", "added")]


@contextmanager
def opened_lab(folder: Path) -> Iterator[Lab]:
    """A lab, closed with everything in it at the end."""
    lab = Lab(folder)
    lab.start()
    try:
        yield lab
        lab.check_steward_is_well()
    finally:
        lab.stop()


def assert_refused(output: str) -> None:
    """Every line says that an attempt was refused, and there is at least one."""
    lines = output.splitlines()
    assert lines, "the attempt said nothing"
    assert all(line.startswith("REFUSED") for line in lines), output
