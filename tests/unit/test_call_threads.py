"""The threads of a worker's blocking calls: those that hang are known, with their jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from fanout.workers.upkeep.watchdog import CallThreads
from tests.waits import eventually_in_thread

GREEDY = """
import asyncio, re, threading
from fanout.workers.upkeep import watchdog
from fanout.workers.upkeep.watchdog import CallThreads

loop = asyncio.new_event_loop()

async def release(*_):
    raise SystemExit("released")

found = watchdog.Watchdog(
    loop, threading.get_ident(), claims=list, release_claims=release, lease_seconds=1000,
    threads=CallThreads(1000), interpreter_seconds=2,
)
found.start()
loop.call_later(1, re.fullmatch, "(a+)+", "a" * 64 + "b")
loop.run_forever()
"""


@pytest.fixture
def threads() -> Iterator[CallThreads]:
    made = CallThreads(0, threads=4)
    yield made
    made.shutdown()


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_call_that_the_system_does_not_answer_hangs_and_is_of_its_job(
    threads: CallThreads, pipe: Path
) -> None:
    with structlog.contextvars.bound_contextvars(job="job-1"):
        stuck = threads.submit(pipe.read_bytes)

    eventually_in_thread(lambda: threads.hanging() == ("job-1",))
    assert threads.hanging() == ("job-1",)  # it stays so
    pipe.write_bytes(b"answer")
    assert stuck.result() == b"answer"
    assert threads.hanging() == ()


def test_a_call_that_makes_steps_does_not_hang_however_long_it_takes(threads: CallThreads) -> None:
    ended, steps, looks = threading.Event(), [], []

    def work() -> None:
        while not ended.wait(0.01):
            steps.append(1)

    working = threads.submit(work)
    for _ in range(9):
        seen = len(steps)
        eventually_in_thread(lambda seen=seen: len(steps) > seen + 1)
        looks.append(threads.hanging())
    ended.set()
    working.result()

    assert set(looks) == {()}


def test_idle_threads_do_not_hang(threads: CallThreads) -> None:
    assert threads.submit(lambda: 1).result() == 1

    assert threads.hanging() == ()
    assert threads.hanging() == ()


def test_a_process_whose_interpreter_is_kept_busy_by_native_code_ends_with_its_stacks() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", GREEDY], capture_output=True, text=True, timeout=110, check=False
    )

    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "run_forever" in ended.stderr
