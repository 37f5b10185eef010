# ruff: noqa: PERF401, PTH110, PTH115, PTH123, PTH208, SIM115
"""What a hostile command does to find a key; run by a job, prints nothing, writes what it found.

`secret_thief.py MARKER GO OUT`: MARKER is the beginning of what is searched, reversed, so that this
command line is not a find. It waits for the file GO, which lists the processes to trace by name,
and writes its findings to OUT. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

MAX_REGION_BYTES = 256 * 1024**2
PTRACE_SEIZE = 0x4206
PIDFD_OPEN, PIDFD_GETFD, PROCESS_VM_READV = 434, 438, 310


def main() -> None:
    marker = sys.argv[1][::-1].encode()
    go, out = Path(sys.argv[2]), Path(sys.argv[3])
    while not go.exists():
        time.sleep(0.05)
    victims: dict[str, int] = json.loads(go.read_text())
    finds: list[str] = []
    looked = 0
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == os.getpid():
            continue
        looked += 1
        for file in ("environ", "cmdline"):
            if marker in content(f"/proc/{pid}/{file}"):
                finds.append(f"{file} of {named(pid, victims)}")
        if marker in memory(pid, marker):
            finds.append(f"memory of {named(pid, victims)}")
    own = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    if marker in own:
        finds.append("own environment")
    report = {
        "uid": os.getuid(),
        "looked": looked,
        "finds": finds,
        "ancestors": list(ancestors()),
        "descriptors": descriptors(),
        "got": {name: got(pid) for name, pid in victims.items()},
    }
    out.write_text(json.dumps(report))


def content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def memory(pid: int, marker: bytes) -> bytes:
    """The marker if the memory of a process holds it."""
    try:
        regions = [
            [int(part, 16) for part in line.split()[0].split("-")]
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if line.split()[1].startswith("rw")
        ]
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            for start, end in regions:
                try:
                    file.seek(start)
                    if marker in file.read(min(end - start, MAX_REGION_BYTES)):
                        return marker
                except (OSError, OverflowError, ValueError):
                    continue
    except OSError:
        pass
    return b""


def got(pid: int) -> list[str]:
    """The rights that this process has over another one."""
    libc = ctypes.CDLL(None, use_errno=True)
    tried = {
        "environ": lambda: bool(open(f"/proc/{pid}/environ", "rb").read(1)),
        "mem": lambda: bool(open(f"/proc/{pid}/mem", "rb")),
        "maps": lambda: bool(open(f"/proc/{pid}/maps").read(1)),
        "fd": lambda: bool(os.readlink(f"/proc/{pid}/fd/0")),
        "cwd": lambda: bool(os.listdir(f"/proc/{pid}/cwd")),
        "root": lambda: bool(os.listdir(f"/proc/{pid}/root")),
        "getfd": lambda: libc.syscall(PIDFD_GETFD, os.pidfd_open(pid), 1, 0) >= 0,
        "ptrace": lambda: libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0,
    }
    return [name for name, attempt in tried.items() if works(attempt)]


def works(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except OSError:
        return False


def named(pid: int, victims: dict[str, int]) -> str:
    names = [name for name, other in victims.items() if other == pid]
    return names[0] if names else f"{pid} ({content(f'/proc/{pid}/comm').decode().strip()})"


def ancestors() -> list[int]:
    found, pid = [], os.getppid()
    while pid > 1:
        found.append(pid)
        status = content(f"/proc/{pid}/status").decode()
        pid = next((int(line.split()[1]) for line in status.splitlines() if "PPid" in line), 0)
    return found


def descriptors() -> dict[str, str]:
    return {
        name: os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}") or name in "012"
    }


try:
    main()
except BaseException:
    Path(sys.argv[3] + ".log").write_text(traceback.format_exc())  # for the test's report
    raise
