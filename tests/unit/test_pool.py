"""The worker's pool: waiting threads, one loop, and tasks that can be terminated at any time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from celery.exceptions import Ignore

from fanout.workers.pool import AgentLoop, TaskPool, run_on_loop


@pytest.fixture
def loop() -> Iterator[AgentLoop]:
    made = AgentLoop()
    yield made
    made.stop()


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


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def test_all_tasks_share_one_loop_and_its_results_come_back(
    loop: AgentLoop, pool: TaskPool
) -> None:
    celery = Celery()

    async def work(number: int) -> tuple[int, int]:
        await asyncio.sleep(0.01)
        return number, threading.get_ident()

    def run(number: int) -> tuple[int, int]:
        return run_on_loop(loop, work(number))

    for number in range(8):
        celery.apply(pool, partial(run, number))
    until(lambda: len(celery.reported) == 8)

    assert {number for number, _ in celery.reported} == set(range(8))
    assert len({thread for _, thread in celery.reported}) == 1


def test_terminating_a_running_task_cancels_its_coroutine_and_reports_nothing(
    loop: AgentLoop, pool: TaskPool
) -> None:
    celery = Celery()
    cancelled = threading.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    celery.apply(pool, lambda: run_on_loop(loop, long()))
    until(lambda: celery.accepted)
    time.sleep(0.05)
    pool.terminate_job(celery.accepted[0])

    assert cancelled.wait(5)
    until(lambda: not pool._tasks)
    assert celery.reported == []


def test_a_task_terminated_while_it_waits_for_a_thread_is_accepted_and_runs_nothing(
    loop: AgentLoop, pool: TaskPool
) -> None:
    celery = Celery()
    ran: list[str] = []
    release = threading.Event()

    async def work() -> None:
        ran.append("work")

    for _ in range(4):
        celery.apply(pool, release.wait)
    until(lambda: len(celery.accepted) == 4)
    queued = celery.apply(pool, lambda: run_on_loop(loop, work()))
    queued.terminate()
    release.set()

    until(lambda: len(celery.accepted) == 5)  # Celery frees the slot of what was accepted
    until(lambda: not pool._tasks)
    assert ran == []
    assert len(celery.reported) == 4


def test_a_failure_of_the_coroutine_is_the_failure_of_the_task(loop: AgentLoop) -> None:
    async def fail() -> None:
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        run_on_loop(loop, fail())


def test_terminating_an_unknown_number_ends_no_other_task(loop: AgentLoop, pool: TaskPool) -> None:
    celery = Celery()
    ended = threading.Event()

    async def until_ended() -> str:
        while not ended.is_set():  # noqa: ASYNC110 - an event of threads
            await asyncio.sleep(0.01)
        return "done"

    celery.apply(pool, lambda: run_on_loop(loop, until_ended()))
    until(lambda: celery.accepted)
    pool.terminate_job(celery.accepted[0] + 1)
    ended.set()

    until(lambda: celery.reported)
    assert celery.reported == ["done"]
