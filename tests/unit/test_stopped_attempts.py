"""Attempts that are stopped together leave the loop to others while they unwind."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.failures import JobCancelled
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.workers.attempt.attempt import Attempt, AttemptOutcome
from fanout.workers.heartbeat import elapsed_clock
from tests.builders import make_spec

ATTEMPTS = 50
LIMITS = Limits(timeout_seconds=600)


def make_attempt(turns: asyncio.Lock) -> Attempt:
    claim = Claim(make_spec(), token=1, attempt=1, ran_seconds=0, submitted_at=0, started_at=0)
    definition = AgentDefinition(name="worker", description="Works.", instruction="Work.")
    return Attempt(claim, definition, LIMITS, elapsed_clock(), turns)


async def test_each_begins_to_unwind_in_a_step_of_the_loop_of_its_own() -> None:
    step = 0
    began: Counter[int] = Counter()

    async def count_steps() -> None:
        nonlocal step
        while True:
            step += 1
            await asyncio.sleep(0)

    async def work(attempt: Attempt) -> AttemptOutcome:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            began[step] += 1
            return AttemptOutcome(failure=attempt.acknowledge())
        raise AssertionError("it was not stopped")

    turns = asyncio.Lock()
    attempts = [make_attempt(turns) for _ in range(ATTEMPTS)]
    running = [asyncio.create_task(attempt.run(work(attempt))) for attempt in attempts]
    counting = asyncio.create_task(count_steps())
    await asyncio.sleep(0.01)

    for attempt in attempts:
        attempt.stop(JobCancelled("The job was cancelled."))
    outcomes = await asyncio.gather(*running)
    counting.cancel()

    assert all(isinstance(outcome.failure, JobCancelled) for outcome in outcomes)
    assert began.total() == ATTEMPTS
    assert max(began.values()) == 1


async def test_one_that_ends_before_its_turn_does_not_hold_up_the_others() -> None:
    turns = asyncio.Lock()
    ends, waits = make_attempt(turns), make_attempt(turns)
    may_end = asyncio.Event()

    async def end() -> AttemptOutcome:
        await may_end.wait()
        return AttemptOutcome(summary="done")

    async def wait() -> AttemptOutcome:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(600)
        return AttemptOutcome(failure=waits.acknowledge())

    running = [asyncio.create_task(ends.run(end())), asyncio.create_task(waits.run(wait()))]
    await asyncio.sleep(0.01)
    async with turns:
        ends.stop(JobCancelled("The job was cancelled."))
        waits.stop(JobCancelled("The job was cancelled."))
        may_end.set()
        first = await running[0]
    second = await running[1]

    assert first.summary == "done"
    assert isinstance(second.failure, JobCancelled)
