"""Keeps a sandbox's processes away from the resident's stream and memory. Runs inside.

They have the resident's user, so the kernel would let them open its descriptors in /proc and attach
to it, unless it is undumpable. Whoever has its stream writes the replies that the worker believes.
"""

# This file works with descriptors and /proc, and importing pathlib would cost every start 5 ms:
# ruff: noqa: PTH123

from __future__ import annotations

import errno
import os
import sys
from functools import partial

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

STREAM = (0, 1)
"""The descriptors of the stream at the start."""
REFUSAL = (
    "Commands could take over the sandbox's own process: "
    "use an image with python3 (not only python3-minimal), and a runtime that keeps processes "
    "undumpable."
)
_OOM_SCORE_VARIABLE = "FANOUT_OOM_SCORE"
"""Set at the second start: the descriptor that the first one opened."""
_PR_SET_DUMPABLE = 4
_PTRACE_SEIZE = 0x4206
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
"""Numbers of system calls, the same on every architecture."""
_COPY_BYTES = 1 << 20
"""The bytes of the interpreter that are copied at once: enough to be quick, little for a process.
"""


def seclude() -> int | None:
    """Make this process unreachable for its children, and prove it. Call it before anything else.

    May start the program again; ends it when a child could reach this process.

    Returns:
        A descriptor of this process's oom_score_adj, which only root may open afterwards; None
        where there is none.
    """
    oom_score = _open_oom_score()
    if not _become_undumpable() and _OOM_SCORE_VARIABLE not in os.environ:
        _start_again_unreadable(oom_score)
    if not _children_are_kept_out():
        os.write(2, REFUSAL.encode() + b"\n")
        os._exit(1)
    return oom_score


def _open_oom_score() -> int | None:
    inherited = os.environ.get(_OOM_SCORE_VARIABLE)
    if inherited:
        os.set_inheritable(int(inherited), False)
        return int(inherited)
    try:
        return os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return None


def _become_undumpable() -> bool:
    """Return whether it succeeded; python3-minimal has no ctypes."""
    try:
        import ctypes  # noqa: PLC0415

        return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _start_again_unreadable(oom_score: int | None) -> None:
    """Start the program again from a copy of the interpreter that this user may not read.

    The kernel makes the process of an unreadable program undumpable. Returns when that fails.
    """
    try:
        with open("/proc/self/exe", "rb") as program:
            copy = os.memfd_create("python3")
            while part := program.read(_COPY_BYTES):
                os.write(copy, part)
        os.fchmod(copy, 0o100)
        executable = os.open(f"/proc/self/fd/{copy}", os.O_PATH)
        os.close(copy)  # a file that is open for writing is not executed
        if oom_score is not None:
            os.set_inheritable(oom_score, True)
        environment = {**os.environ, _OOM_SCORE_VARIABLE: str(oom_score or "")}
        command = ["python3", "-ISB", *sys.argv]
        os.execve(executable, command, environment)  # noqa: S606 - a shell has no place here
    except OSError:
        return


def _children_are_kept_out() -> bool:
    """Return whether a child with this process's rights fails to reach it in every way."""
    target = os.getpid()
    child = os.fork()
    if child == 0:
        _try_all(target)
    return os.waitpid(child, 0)[1] == 0


def _try_all(target: int) -> NoReturn:
    """End this child with 0 when every way is refused, and for no other reason."""
    code = 1
    try:
        code = int(not all(_is_refused(way) for way in _ways(target)))
    finally:
        os._exit(code)


def _is_refused(way: Callable[[], object]) -> bool:
    try:
        way()
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM, errno.ENOSYS)
    return False


def _ways(target: int) -> Iterator[Callable[[], object]]:
    """Yield the attempts. Attaching needs the right that opening /proc/PID/mem needs."""
    for descriptor in STREAM:
        path = f"/proc/{target}/fd/{descriptor}"
        yield partial(os.readlink, path)
        yield partial(os.open, path, os.O_RDONLY | os.O_NONBLOCK)
        yield partial(os.open, path, os.O_WRONLY | os.O_NONBLOCK)
    for flags in (os.O_RDONLY, os.O_RDWR):
        yield partial(os.open, f"/proc/{target}/mem", flags)
    try:
        import ctypes  # noqa: PLC0415 - python3-minimal has none

        libc = ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return

    def call(function: Callable[..., int], *arguments: int) -> int:
        result = function(*(ctypes.c_long(argument) for argument in arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), "refused")
        return result

    def take_descriptor() -> int:
        handle = call(libc.syscall, _PIDFD_OPEN, target, 0)
        return call(libc.syscall, _PIDFD_GETFD, handle, STREAM[1], 0)

    yield partial(call, libc.ptrace, _PTRACE_SEIZE, target, 0, 0)
    yield take_descriptor
