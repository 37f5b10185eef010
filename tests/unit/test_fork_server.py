"""The server that forks the steward's collectors, in an interpreter of its own without threads."""

from __future__ import annotations

import subprocess
import sys

PREPARE = """
import os, resource, signal, threading, time
from fanout.workers.sandbox.inside.collection.fork_server import ForkFailed, ForkServer

def work(arguments):
    os.write(1, arguments[0].encode())
    return 3

if os.geteuid() == 0:
    os.setgid(54321)
    os.setuid(54321)  # root has no limit of processes

def run(server):
    try:
        with server.start(["written"], 5) as process:
            return process.output.read(), process.wait()
    except Exception as error:
        return type(error).__name__

server = ForkServer(work)
children = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
(pid,) = map(int, open(children).read().split())
"""


def run(script: str) -> str:
    command = [sys.executable, "-c", PREPARE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def test_a_process_gives_its_output_and_its_exit_code() -> None:
    assert run("print(run(server))") == "(b'written', 3)"


def test_a_server_that_dies_while_it_is_asked_is_told_as_gone() -> None:
    asked = """
os.kill(pid, signal.SIGSTOP)
threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
print(run(server), run(server))
"""
    assert run(asked) == "BrokenPipeError BrokenPipeError"


def test_a_server_that_cannot_fork_says_so_and_goes_on_later() -> None:
    limited = """
_, most = resource.prlimit(pid, resource.RLIMIT_NPROC)
resource.prlimit(pid, resource.RLIMIT_NPROC, (0, most))
failed = run(server)
resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))
print(failed, run(server))
"""
    assert run(limited) == "ForkFailed (b'written', 3)"
