"""Processes whose memory the kernel does not let anybody read, as those of a hostile neighbour.

Each is about to unmap a page that it writes to at the same time, of a file system that is frozen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.waits import eventually_in_thread

PAGE_BYTES = 4096
GETS_STUCK = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, os.open(sys.argv[1], os.O_RDWR), ctypes.c_long(0))
ctypes.string_at(page, 1)
print("mapped", flush=True)
sys.stdin.readline()
threading.Thread(target=ctypes.memset, args=(page, 1, 1)).start()
time.sleep(0.2)
libc.munmap(ctypes.c_void_p(page), ctypes.c_size_t(4096))
"""
FREEZE = 'fsfreeze --freeze "$1" && echo frozen && read -r _; fsfreeze --unfreeze "$1"'
"""Until its input ends, as it does with the test's process: nothing stays frozen."""


@contextmanager
def stuck_processes(folder: Path, count: int) -> Iterator[None]:
    """Have so many of them while the context is open.

    Args:
        folder: where the file system is made.
        count: how many.
    """
    if os.geteuid() != 0 or not (shutil.which("fsfreeze") and shutil.which("mkfs.ext4")):
        pytest.skip("A file system is made and frozen for it: needs root, fsfreeze and mkfs.ext4.")
    with ExitStack() as stack:
        mounted = stack.enter_context(_mounted(folder))
        holders = [stack.enter_context(_holder(mounted / str(at))) for at in range(count)]
        freezing = stack.enter_context(_talking("sh", "-c", FREEZE, "sh", str(mounted)))
        assert freezing.stdout
        assert freezing.stdout.readline() == "frozen\n"
        for holder in holders:
            assert holder.stdin
            holder.stdin.write("\n")
            holder.stdin.flush()
        for holder in holders:
            _await_stuck(holder.pid)
        yield


@contextmanager
def _mounted(folder: Path) -> Iterator[Path]:
    image, place = folder / "image", folder / "frozen"
    image.write_bytes(bytes(16 << 20))
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount = ["mount", "-o", "loop", str(image), str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("This machine has no loop devices to mount.")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def _holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    file.write_bytes(bytes(PAGE_BYTES))
    with file.open("rb") as written:
        os.fsync(written.fileno())
    with _talking(sys.executable, "-c", GETS_STUCK, str(file)) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "mapped\n"
        yield holder


@contextmanager
def _talking(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program; at the end its input ends, and it has to end as well."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.communicate(timeout=60)


def _await_stuck(pid: int) -> None:
    status = Path(f"/proc/{pid}/stat")
    eventually_in_thread(lambda: status.read_text().rpartition(")")[2].split()[0] == "D")
