"""What the commands of the local sandbox may do, and which folders they see (Linux).

They run as the worker's user. That keeps them from the worker's keys only while they have not the
capability to trace other processes: an undumpable worker is closed to its own user, and to root
without CAP_SYS_PTRACE. So root's commands keep the capabilities that ordinary installations and
tests use, and none that reaches other processes, devices or the kernel. Nobody's commands gain
privileges by set-user-ID programs such as sudo. Where the worker is root, a thread leaves the
process's mount namespace for one of its own, with the job's folders at `/workspace` and `/tmp`.

All of this belongs to a thread, whose programs inherit it: no further program has to be started
for each command.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from fanout.workers.sandbox.errors import SandboxStartFailed
from fanout.workers.sandbox.inside.disks import call

_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID = 0, 1, 3, 4, 5, 6, 7
_SETPCAP, _NET_BIND_SERVICE, _SYS_PTRACE = 8, 10, 19
_KEPT = (_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _NET_BIND_SERVICE)
"""The capabilities of root's commands: on files and on processes of other users, to whom a command
may switch."""
_MOST_CAPABILITIES = 64
"""The kernel has 41 now, in masks of two words."""

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITY_VERSION_3 = 0x20080522

_HOLDING = ctypes.PyDLL(None)
"""The C library, whose functions keep the interpreter's lock: dozens of calls of a microsecond each
would wait for it after each one."""
_CLONE_NEWNS = 0x00020000
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18


def check_privileges() -> None:
    """Check that commands cannot read the memory of the worker; it reads a file of the kernel's.

    Raises:
        SandboxStartFailed: They could: `take_privileges` would not suffice.
    """
    has = _effective_capabilities()
    if has >> _SYS_PTRACE & 1 and not has >> _SETPCAP & 1:
        raise SandboxStartFailed(
            "Commands would run with the right to read this worker's memory, and a worker without "
            "CAP_SETPCAP cannot take it from them: run the worker as an unprivileged user."
        )


def take_privileges() -> None:
    """Take the privileges from the programs that the calling thread starts, for its whole life.

    The thread keeps those that it has itself: a command with as many as its worker's threads could
    try to trace them.

    Raises:
        OSError: The kernel refuses.
    """
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _inherit_nothing()
    if _effective_capabilities() >> _SETPCAP & 1:
        for capability in range(_MOST_CAPABILITIES):
            if capability not in _KEPT and _HOLDING.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
                break  # the kernel has no more


def _inherit_nothing() -> None:
    thread = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)  # 0 is the calling one
    masks = (ctypes.c_uint32 * 6)()  # twice a word of the effective, permitted and inheritable ones
    call("capget", thread, masks)
    masks[2] = masks[5] = 0
    call("capset", thread, masks)


def _effective_capabilities() -> int:
    """Return the mask of the calling thread's effective capabilities."""
    for line in Path("/proc/thread-self/status").read_text("utf-8").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def enter_own_mounts(binds: Mapping[str, Path]) -> None:
    """Give the calling thread its own mount namespace, for its whole life.

    Args:
        binds: The folders that its programs see, by the existing folders in whose places they see
            them.

    Raises:
        OSError: The kernel refuses, or a folder does not exist.
    """
    call("unshare", _CLONE_NEWNS)
    _mount("none", "/", _REC | _PRIVATE)  # or other namespaces would see the mounts
    for place, folder in binds.items():
        _mount(folder, place, _BIND)


def _mount(source: Path | str, target: str, flags: int) -> None:
    call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None)
