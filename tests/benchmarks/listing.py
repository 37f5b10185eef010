"""Runs a command that prints a list, and prints what it took of this machine, as JSON.

It is a program of its own: the peak of a process is at least that of the one that has started it,
so a small one has to start what is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CHUNK_BYTES = 2**20


def processor_ms(pid: int) -> float:
    """The milliseconds of processors that a process has used so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


def main(command: list[str]) -> int:
    """Run a command, print what it took, and return its exit code."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(1)
        first_byte_ms = processor_ms(process.pid)
        while process.stdout.read(CHUNK_BYTES):
            pass
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    print(json.dumps({"first_byte_ms": first_byte_ms, "peak_mib": used.ru_maxrss / 1024}))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
