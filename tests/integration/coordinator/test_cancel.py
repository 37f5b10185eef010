"""Whoever ends a coordinator's run ends the jobs that it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.orchestrator.jobs.state import JobState
from tests.integration.coordinator.driving import Coordination, Run, event_text, task
from tests.integration.scripts import call, calls

pytestmark = pytest.mark.redis

LONG = "run: touch begun.txt; sleep 600"


async def begun(
    coordination: Coordination, *replies: dict[str, Any], jobs: int, **more: Any
) -> tuple[Run, asyncio.Task[None]]:
    """A run whose jobs are all inside their long command."""
    run = Run(await coordination.new_session())
    going = asyncio.create_task(coordination.drive(coordination.runner(*replies), run, **more))
    await coordination.until_progress(run, "execute", jobs)
    return run, going


async def ended_before_their_commands(coordination: Coordination, run: Run) -> None:
    records = await coordination.client.tree(run.root_id)
    results = [await coordination.client.wait(record.id, 60) for record in records]
    assert {result.state for result in results} == {JobState.CANCELLED}
    assert sorted(path.name for path in coordination.workspace.iterdir()) == ["kept.txt"]


async def test_cancelling_the_run_cancels_its_jobs(coordination: Coordination) -> None:
    run, going = await begun(coordination, calls(task(LONG), task(LONG)), jobs=2)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going

    await ended_before_their_commands(coordination, run)


async def test_cancelling_the_run_cancels_the_jobs_of_tasks(coordination: Coordination) -> None:
    items = [{"description": LONG}, {"description": LONG}]
    run, going = await begun(coordination, calls(call("tasks", tasks=items)), jobs=2)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going

    await ended_before_their_commands(coordination, run)


async def test_the_abort_signal_cancels_its_jobs_and_the_calls_are_answered(
    coordination: Coordination,
) -> None:
    abort = asyncio.Event()
    run, going = await begun(
        coordination, calls(task(LONG), task(LONG)), jobs=2, abort_signal=abort
    )
    abort.set()
    await going

    await ended_before_their_commands(coordination, run)
    session = await coordination.session(run)
    assert sum(len(event.get_function_responses()) for event in session.events) == 2


async def test_a_reader_that_goes_away_in_the_middle_cancels_the_job(
    coordination: Coordination,
) -> None:
    """As when a browser closes the stream: the generator is closed where it stands."""
    run = Run(await coordination.new_session())
    reading = asyncio.create_task(
        coordination.drive(coordination.runner(calls(task(LONG))), run, stop_at="execute")
    )
    await reading
    assert event_text(run.events[-1]).endswith("execute\n")

    await ended_before_their_commands(coordination, run)


@pytest.mark.slow
async def test_a_run_cancelled_before_its_job_is_stored_leaves_none_running(
    coordination: Coordination,
) -> None:
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        run = Run(await coordination.new_session())
        going = asyncio.create_task(coordination.drive(coordination.runner(calls(task(LONG))), run))
        await coordination.until_called(run)
        await asyncio.sleep(delay)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)

        await asyncio.sleep(0.1)
        records = [
            record for record in await coordination.client.list() if record.root_id == run.root_id
        ]
        for record in records:
            assert (await coordination.client.wait(record.id, 60)).state is JobState.CANCELLED
