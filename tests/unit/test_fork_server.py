"""The server that forks the steward's collectors, in an interpreter of its own without threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waits import eventually_in_thread

PREPARE = """
import os, resource, signal, threading, time
from fanout.workers.sandbox.inside.fork_server import ForkFailed, ForkServer

def work(requester):
    (text,) = requester.receive()
    os.write(1, text.encode())
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

def children_of(pid):
    return list(map(int, open(f"/proc/{pid}/task/{pid}/children").read().split()))

(pid,) = children_of(os.getpid())

def process_ready(after=None):
    while not (found := [each for each in children_of(pid) if each != after]):
        time.sleep(0.01)
    return found[0]
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


def test_a_process_that_was_made_ahead_does_the_next_work_and_another_one_follows() -> None:
    ahead = """
first = process_ready()
print(run(server))
process_ready(after=first)
print(run(server))
"""
    assert run(ahead) == "(b'written', 3)\n(b'written', 3)"


def test_a_process_that_is_killed_before_it_is_asked_for_is_replaced() -> None:
    killed = """
first = process_ready()
os.kill(first, signal.SIGKILL)
process_ready(after=first)
print(run(server))
"""
    assert run(killed) == "(b'written', 3)"


def test_a_process_that_has_died_is_not_killed_by_an_id_that_may_be_anothers() -> None:
    dying = """
def die(requester):
    requester.receive()
    os.kill(os.getpid(), signal.SIGKILL)

with ForkServer(die).start(["text"], 5) as process:
    print(process.wait())
    os.kill = print
"""
    assert run(dying) == "-9"


def test_a_process_that_fails_before_it_has_its_arguments_reports_that() -> None:
    failing = """
server = ForkServer(lambda requester: 5)
print(run(server))
time.sleep(0.3)
print(run(server))
"""
    assert run(failing) == "(b'', 5)\n(b'', 5)"


def test_a_process_that_was_made_ahead_ends_with_the_one_that_would_ask_for_it() -> None:
    left = """
first = process_ready()
print(first, flush=True)
os._exit(0)
"""
    pid = int(run(left))
    eventually_in_thread(lambda: not Path(f"/proc/{pid}").exists())
