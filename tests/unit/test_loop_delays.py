"""A worker says how late its loop runs what is due, and collects garbage when few jobs run."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.totals import Totals
from fanout.orchestrator.jobs.worker_info import WorkerInfo, read_worker
from fanout.workers.upkeep.counting import LoopDelays
from fanout.workers.upkeep.garbage import MAX_COLLECTIONS, QUIET_JOBS, Garbage
from tests.builders import make_worker
from tests.waits import eventually


async def test_a_step_that_holds_the_loop_is_a_delay() -> None:
    delays = LoopDelays(lambda: True, Totals())
    measuring = asyncio.create_task(delays.run())
    await asyncio.sleep(0)

    held_until = time.monotonic() + 0.2
    while time.monotonic() < held_until:
        pass
    await eventually(lambda: delays.histogram()["+Inf"])
    await cancel_and_wait(measuring)

    found = delays.histogram()
    assert found["0.15"] < found["+Inf"]
    assert found["sum"] > 0.15


def test_a_worker_registers_its_delays_for_servers_of_the_release_before() -> None:
    delays = LoopDelays(lambda: True, Totals())
    for seconds in (0.004, 0.04, 0.04, 7.0):
        delays.add(seconds)
    registered = make_worker("w1", loop_delays=delays.histogram()).fields()
    read = read_worker(WorkerInfo, "w1", {name: str(value) for name, value in registered.items()})
    found = read.loop_delays
    assert (found["0.005"], found["0.05"], found["+Inf"]) == (1, 3, 4)


def test_a_worker_of_a_release_that_measured_no_delays_is_read() -> None:
    registered = make_worker("w1").fields()
    del registered["loop_delays"]
    read = read_worker(WorkerInfo, "w1", {name: str(value) for name, value in registered.items()})
    assert read.loop_delays == {}


@pytest.mark.parametrize(
    ("before", "running", "additions", "is_due"),
    [
        (QUIET_JOBS, QUIET_JOBS, 0, False),
        (QUIET_JOBS, QUIET_JOBS, 1, True),
        (QUIET_JOBS + 1, QUIET_JOBS, 1, False),
        (QUIET_JOBS, QUIET_JOBS + 1, MAX_COLLECTIONS - 1, False),
        (QUIET_JOBS, QUIET_JOBS + 1, MAX_COLLECTIONS, True),
    ],
)
def test_the_oldest_garbage_is_collected_when_few_jobs_run_for_a_while_or_much_was_added(
    monkeypatch: pytest.MonkeyPatch, before: int, running: int, additions: int, is_due: bool
) -> None:
    collected: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(None))
    jobs = iter([before, running])
    garbage = Garbage(running=lambda: next(jobs))
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 0))
    garbage.collect_if_due()
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, additions))
    garbage.collect_if_due()
    assert bool(collected) == is_due


def test_what_is_imported_late_is_exempt_and_nothing_is_collected_meanwhile() -> None:
    before = gc.get_freeze_count()
    try:
        with Garbage(running=lambda: 0).exempt_import():
            assert not gc.isenabled()
            imported = [[number] for number in range(1000)]

        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(imported)
    finally:
        gc.unfreeze()
