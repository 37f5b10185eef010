"""The local provider's commands as processes of this machine, and finding a job's processes."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import math
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fanout.orchestrator.deep_agent import Execution, OutputSink
from fanout.orchestrator.deep_agent.backends import processes
from fanout.orchestrator.deep_agent.backends.proc_table import (
    EnvironmentReader,
    SharedLooks,
    content,
    other_processes,
    read_variable,
    signal_all,
)
from fanout.orchestrator.portable.command_output import OutputFiles
from fanout.orchestrator.portable.commands import COMMAND_MARKER, GIVE_UP_SECONDS, find_shell

from ..errors import SandboxStartFailed
from ..inside.disks import call
from ..protocol import WORKSPACE, Command

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
_READ_BYTES = 32 << 10
"""Read from a process at once."""
JOB_MARKER = "FANOUT_SANDBOX"
PROGRAMS = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{sys.base_prefix}/bin"
"""Where commands find programs. Last the worker's own Python, without its packages: a machine may
have no other, as where uv installed it."""
_LIMITED = """
for limit in "-c 0" "-d $1" "-f $2" "-w $3" "-x $3"; do ulimit $limit 2>/dev/null || :; done
cd "$4" && shift 4 && exec "$@" || exit 127
"""
"""The number of file locks is `-w` in one shell and `-x` in another; Linux no longer enforces
it."""
_MARKED_LIMIT = b"Max file locks"
_STARTED_FIELD = 19
"""The index of the field after the name in `/proc/PID/stat`."""


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


def seen_tmp(tmp: Path, *, bound: bool) -> str:
    """Return the path of a job's folder for temporary files, as its commands know it."""
    return "/tmp" if bound else str(tmp)  # noqa: S108 - the job's own


def home_below(seen: str) -> str:
    """Return the folder that commands know as HOME, given the path of `seen_tmp`."""
    return f"{seen}/home"


@dataclass(frozen=True)
class LocalJobFolder:
    """The folder of a job and how its commands run in it."""

    token: str
    """Unique among the sandboxes of this machine; processes are found by it."""
    tree: Path
    tmp: Path
    memory_bytes: int
    file_bytes: int
    bound: bool
    """Commands see the tree as `/workspace` and `tmp` as `/tmp`, in their own mount namespace."""

    @property
    def home(self) -> str:
        """The folder that commands know as HOME."""
        return home_below(self.seen_tmp)

    @property
    def seen_tmp(self) -> str:
        """The path of `tmp` for commands."""
        return seen_tmp(self.tmp, bound=self.bound)

    def argv(self, command: Command, cwd: str, shell: Sequence[str]) -> list[str]:
        """Return the whole command line.

        A command that cannot be started ends with 127 or 126, as in a shell.

        Args:
            command: the command.
            cwd: the folder in which it starts, as commands see it.
            shell: what a command that is a text is given to.

        Raises:
            ValueError: the command is empty.
        """
        argv = command.argv
        own = [*shell, argv] if isinstance(argv, str) else list(argv)
        if not own:
            raise ValueError("an empty command")
        limits = [
            str(self.memory_bytes // 1024),
            str(self.file_bytes // 512),
            str(_mark(self.token)),
        ]
        return ["/bin/sh", "-c", _LIMITED, "sh", *limits, cwd, *own]

    def confine(self) -> None:
        """Confine the calling thread, for its whole life, and the command that it starts.

        Raises:
            OSError: the kernel refuses.
        """
        if self.bound:
            enter_own_mounts({WORKSPACE: self.tree, self.seen_tmp: self.tmp})
        take_privileges()

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a command; nothing of the worker's is in it."""
        return {
            "PATH": PROGRAMS,
            "HOME": self.home,
            "TMPDIR": self.seen_tmp,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
            JOB_MARKER: self.token,
        }


@dataclass(frozen=True)
class StoppedRun:
    """A command that was stopped."""

    marker: str
    started_ticks: int
    """When it was started, in the kernel's unit; see `ticks_since_boot`."""


class _Origin(NamedTuple):
    """Where a process comes from."""

    started_ticks: int
    parent: int
    marker: str
    """That of the command that has started it; empty where it has none."""


@dataclass(frozen=True)
class _Processes:
    """The live processes of the machine except this one, by what tells whose each is.

    They are grouped once for the hundreds of jobs that may share a look.
    """

    by_token: dict[str, list[int]]
    """The processes by the token in their environment."""
    by_limit: dict[bytes, list[int]]
    """The processes by a value, soft or hard, of the limit that carries a sandbox's mark."""
    by_cwd: dict[str, list[int]]
    by_mount: dict[bytes, list[int]]
    """The processes by a line about the workspace in the mount table of their own mount namespace.
    """
    origins: dict[int, _Origin]
    """Where each comes from."""

    def of(self, token: str, tree: Path | None) -> list[int]:
        """Return the processes of a sandbox; see `kill_job` for the arguments."""
        found = [*self.by_token.get(token, ()), *self.by_limit.get(b"%d" % _mark(token), ())]
        if tree is not None:
            found += self._at_home(tree)
        return list(dict.fromkeys(found))

    def left_by(self, stopped: Sequence[StoppedRun], token: str, tree: Path) -> list[int]:
        """Return those of a sandbox that stopped commands left; see `kill_stopped`."""
        markers = {each.marker for each in stopped}
        began = min(each.started_ticks for each in stopped)
        found = [(pid, self.origins[pid]) for pid in self.of(token, tree)]
        spared: set[int] = set()
        for pid, origin in sorted(found, key=lambda each: each[1].started_ticks):
            is_earlier = 0 < origin.started_ticks < began or origin.parent in spared
            is_ended_ones = origin.marker.startswith(f"{token}-") or is_earlier
            if is_ended_ones and origin.marker not in markers:
                spared.add(pid)
        return [pid for pid, _origin in found if pid not in spared]

    def _at_home(self, tree: Path) -> Iterator[int]:
        """Yield those that are in the tree, or see it as their workspace, wherever they are."""
        home, below = str(tree), f"{tree}/"
        for cwd, pids in self.by_cwd.items():
            if cwd == home or cwd.startswith(below):
                yield from pids
        mounted = os.fsencode(f"/{tree.parent.name}/{tree.name} ")
        for line, pids in self.by_mount.items():
            if mounted in line:
                yield from pids


class _WorkspaceMounts:
    """The lines about the workspace in mount tables, remembered from one look to the next.

    The kernel takes a millisecond for a long table, and each command has one of its own. The lines
    of a process are read until there are some: a namespace is made before its mounts.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, bytes], tuple[bytes, ...]] = {}
        self._base_content = self._known

    def begin_look(self) -> None:
        """Forget what the last look did not ask for."""
        self._base_content, self._known = self._known, {}

    def of(self, pid: int, namespace: str) -> tuple[bytes, ...]:
        """Return the lines of a process that is in this mount namespace."""
        fields = content(f"/proc/{pid}/stat").rpartition(b")")[2].split(maxsplit=20)
        started = b"".join(fields[19:20])
        key = (namespace, pid, started)  # the ids are used again
        lines = self._base_content.get(key) or _workspace_mounts(pid)
        if lines and started:
            self._known[key] = lines
        return lines


_MOUNTS = _WorkspaceMounts()


def _look(environments: EnvironmentReader) -> _Processes:
    own_mounts = _link("/proc/self/ns/mnt")
    known: dict[str, tuple[bytes, ...]] = {"": (), own_mounts: ()}
    _MOUNTS.begin_look()
    seen = _Processes(
        defaultdict(list), defaultdict(list), defaultdict(list), defaultdict(list), {}
    )
    for pid, _session in other_processes():
        mounts = _link(f"/proc/{pid}/ns/mnt")
        if mounts not in known:
            known[mounts] = _MOUNTS.of(pid, mounts)
        for line in known[mounts]:
            seen.by_mount[line].append(pid)
        environment = environments.read(pid)
        if token := read_variable(environment, JOB_MARKER):
            seen.by_token[token].append(pid)
        seen.origins[pid] = _origin(pid, environment)
        for limit in _marked_limits(pid):
            seen.by_limit[limit].append(pid)
        seen.by_cwd[_link(f"/proc/{pid}/cwd")].append(pid)
    return seen


_JOBS = SharedLooks(_look)


def _origin(pid: int, environment: bytes) -> _Origin:
    fields = content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) <= _STARTED_FIELD:  # it has ended
        return _Origin(0, 0, "")
    marker = read_variable(environment, COMMAND_MARKER)
    return _Origin(int(fields[_STARTED_FIELD]), int(fields[1]), marker)


def _mark(token: str) -> int:
    """Return a sandbox's token as the value of a resource limit.

    Processes inherit limits whatever happens to their session, parent, folder and environment.
    """
    return int.from_bytes(hashlib.sha256(token.encode()).digest()[:7])


def _marked_limits(pid: int) -> tuple[bytes, ...]:
    rest = content(f"/proc/{pid}/limits").partition(_MARKED_LIMIT)[2]
    return tuple(rest.partition(b"\n")[0].split())


def _workspace_mounts(pid: int) -> tuple[bytes, ...]:
    place = os.fsencode(f" {WORKSPACE} ")
    lines = content(f"/proc/{pid}/mountinfo").split(b"\n")
    return tuple(line for line in lines if place in line)


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a look reads thousands, Path takes three times as long
    except OSError:
        return ""


async def kill_job(token: str, tree: Path | None) -> bool:
    """Kill every process of a sandbox, found by its marks, its mounts, its working directory.

    Args:
        token: The sandbox's.
        tree: Its folder. None searches by the marks only, which belong to one attempt: the next
            attempt works in the same folder.

    Returns:
        False when some survive for several seconds.
    """
    return await _kill(lambda seen: seen.of(token, tree))


async def kill_stopped(token: str, tree: Path, stopped: Sequence[StoppedRun]) -> bool:
    """Kill what stopped commands left behind, and nothing that ended commands left running.

    A process without the mark of an ended command is spared if it was started before the stopped
    commands, or by one that is.

    Args:
        token: The sandbox's.
        tree: Its folder.
        stopped: The commands; no other one of the sandbox runs.

    Returns:
        False when some survive for several seconds.
    """
    return await _kill(lambda seen: seen.left_by(stopped, token, tree))


async def _kill(find: Callable[[_Processes], list[int]]) -> bool:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while found := find(await _JOBS.look()):
        signal_all(found, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


def ticks_since_boot() -> int:
    """Return the time in the unit in which the kernel says when a process was started."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


async def run(
    folder: LocalJobFolder,
    command: Command,
    cwd: str,
    *,
    marker: str,
    on_output: OutputSink | None,
    output_files: OutputFiles,
    link: socket.socket | None = None,
) -> Execution:
    """Run a command to its end; a cancelled caller leaves none of its processes behind.

    Args:
        folder: the job's.
        command: what to run.
        cwd: the folder in which it starts, as commands see it.
        marker: the mark of this command's processes.
        on_output: receives the output while the command runs.
        output_files: where its whole output is kept, if that is wanted.
        link: becomes its input and output; there is no time limit then.
    """
    try:
        argv = folder.argv(command, cwd, await asyncio.to_thread(find_shell, PROGRAMS))
    except ValueError:
        message = b"cannot start the command: not a command\n"
        return Execution(exit_code=127, output=message, total_bytes=len(message))
    launch = processes.Launch(
        argv=argv,
        env=folder.environment(command.env),
        timeout_seconds=command.timeout_seconds if link is None else math.inf,
        max_output_bytes=command.max_output_bytes,
        stdin=command.stdin,
        merge_stderr=command.merge_stderr and link is None,
        output_files=output_files if command.keep_output else None,
        link=link,
        marker=marker,
        confine=folder.confine,
    )
    return await processes.run(launch, on_output)


class SocketChannel:
    """The channel to a process of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """See `Channel.read`."""
        try:
            return await self._reader.read(_READ_BYTES)
        except ConnectionError:  # it ended with unread input
            return b""

    async def write(self, data: bytes) -> None:
        """See `Channel.write`."""
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
