"""The worker's pool: tasks that share one loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from celery.exceptions import Ignore

from fanout.workers.pool import TaskPool, agent_loop, run_coroutine
from tests.waits import eventually, eventually_in_thread


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    made = TaskPool(4)
    made.start()
    yield made
    made.stop()


class Celery:
    """What Celery hears of a task."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.reported: list[Any] = []

    def on_accepted(self, pid: int, _: float) -> None:
        self.accepted.append(pid)

    def apply(self, pool: TaskPool, body: Callable[[], Any]) -> Any:
        def traced() -> Any:
            try:
                return body()
            except Ignore:
                return "ignored"

        return pool.apply_async(
            traced, (), {}, callback=self.reported.append, accept_callback=self.on_accepted
        )


def test_all_tasks_share_one_thread_and_their_results_come_back(pool: TaskPool) -> None:
    celery = Celery()

    async def work(number: int) -> tuple[int, int]:
        await asyncio.sleep(0.01)
        return number, threading.get_ident()

    def run(number: int) -> tuple[int, int, int]:
        return *run_coroutine(work(number)), threading.get_ident()

    for number in range(8):
        celery.apply(pool, partial(run, number))
    eventually_in_thread(lambda: len(celery.reported) == 8)

    assert {number for number, *_ in celery.reported} == set(range(8))
    assert len({thread for _, *threads in celery.reported for thread in threads}) == 1


def test_no_more_tasks_run_at_once_than_the_pool_has_slots(pool: TaskPool) -> None:
    celery = Celery()
    release = threading.Event()
    running: list[int] = []

    async def work(number: int) -> int:
        running.append(number)
        await _until(release)
        return number

    for number in range(6):
        celery.apply(pool, partial(lambda number: run_coroutine(work(number)), number))
    eventually_in_thread(lambda: len(running) == 4)
    time.sleep(0.1)
    assert running == [0, 1, 2, 3]
    pool.grow(1)
    eventually_in_thread(lambda: len(running) == 5)
    release.set()
    eventually_in_thread(lambda: len(celery.reported) == 6)
    assert sorted(celery.reported) == list(range(6))


def test_a_pool_that_stops_waits_for_what_runs_and_drops_what_waits(pool: TaskPool) -> None:
    celery = Celery()

    async def work(number: int) -> int:
        await asyncio.sleep(0.2)
        return number

    for number in range(6):
        celery.apply(pool, partial(lambda number: run_coroutine(work(number)), number))
    pool.on_stop()

    assert sorted(celery.reported) == [0, 1, 2, 3]
    assert not pool._waiting


def test_other_work_of_the_loop_goes_on_between_the_ends_of_tasks_that_end_together(
    pool: TaskPool,
) -> None:
    celery = Celery()
    together, rounds = asyncio.Event(), 0
    ended: list[int] = []

    async def work() -> None:
        await together.wait()

    async def other_work() -> None:
        nonlocal rounds
        while len(ended) < 4:
            rounds += 1
            await asyncio.sleep(0)

    def run() -> None:
        run_coroutine(work())
        ended.append(rounds)

    for _ in range(4):
        celery.apply(pool, run)
    loop = agent_loop().loop
    done = asyncio.run_coroutine_threadsafe(other_work(), loop)
    eventually_in_thread(lambda: rounds > 100)
    loop.call_soon_threadsafe(together.set)
    done.result(5)

    assert len(set(ended)) == 4


def test_a_failure_of_the_coroutine_is_the_failure_of_the_task(pool: TaskPool) -> None:
    celery = Celery()

    async def fail() -> None:
        raise ValueError("it failed")

    def run() -> str:
        with pytest.raises(ValueError, match="it failed"):
            run_coroutine(fail())
        return "failed"

    celery.apply(pool, run)
    eventually_in_thread(lambda: celery.reported)
    assert celery.reported == ["failed"]


def test_an_error_of_celery_around_a_task_frees_its_slot(pool: TaskPool) -> None:
    celery = Celery()

    def broken() -> None:
        raise RuntimeError("an error of Celery's own")

    for _ in range(5):
        celery.apply(pool, broken)
    celery.apply(pool, lambda: "done")
    eventually_in_thread(lambda: celery.reported)
    assert celery.reported == ["done"]


def test_a_task_runs_also_if_its_message_cannot_be_acknowledged(pool: TaskPool) -> None:
    reported: list[Any] = []

    def refuse(_number: int, _time: float) -> None:
        raise RuntimeError("MISCONF Redis cannot write to its disk")

    pool.apply_async(lambda: "done", (), {}, callback=reported.append, accept_callback=refuse)
    eventually_in_thread(lambda: reported)
    assert reported == ["done"]


def test_a_coroutine_is_run_for_a_task_only() -> None:
    async def work() -> None:
        raise AssertionError("it ran")

    with pytest.raises(TypeError, match="Only a task"):
        run_coroutine(work())


async def _until(happened: threading.Event) -> str:
    await eventually(happened.is_set)
    return "done"
