"""What a host cannot do costs its jobs no attempt, and ends none that another host can run."""

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.ledger import MAX_HOST_FAULTS
from fanout.orchestrator.jobs.store.waiting import Workforce, occupancy, waiting_reason
from fanout.workers.sandbox.errors import (
    EngineForbidden,
    EngineUnavailable,
    ImageMissing,
    SandboxDied,
    SandboxStartFailed,
)
from tests.builders import make_spec, make_worker
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, shell

AWAY = EngineUnavailable("No Docker engine answers at unix:///engine.sock: start Docker.")
FULL = SandboxStartFailed("The engine's disk has reached its reserve of free space.")
SCRIPT = (
    conversation("^write", shell("echo made > made.txt"), DONE),
    conversation("^steps", *(shell(f"echo {step} >> steps.txt") for step in range(20)), DONE),
)


bench = bench_fixture(*SCRIPT, retry_pause_seconds=0)


@pytest.mark.parametrize("fault", [AWAY, EngineForbidden("It is closed to this user."), FULL])
async def test_a_job_waits_for_its_host_and_then_runs_in_its_first_attempt(
    bench: Bench, fault: JobFailure
) -> None:
    bench.provider.away = fault
    first, second = [await bench.submit(make_spec("write", max_attempts=1)) for _ in "ab"]

    await bench.run(bench.arrived.get_nowait())

    waiting = await bench.ledger.get(first)
    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, 0)
    assert str(fault).rstrip(".") in await _reason(bench, waiting)
    assert str(fault).rstrip(".") in await _last_reason(bench, first)
    await bench.work_off()
    assert bench.provider.opened == 1, "the second job was given back at once"
    assert await bench.ledger.dispatch(9) == [], "a worker that takes none is sent none"

    bench.provider.away = None
    await bench.look()
    await bench.work_off()

    for job_id in (first, second):
        result = await bench.ended(job_id)
        assert (result.success, result.attempts) == (True, 1)
    assert await _order(bench, first, second) == [first, second]


async def test_a_job_during_which_its_engine_ends_goes_on_without_using_up_an_attempt(
    bench: Bench,
) -> None:
    bench.provider.die_after_command = [SandboxDied("It is gone.")]
    job_id = await bench.submit(make_spec("steps", max_attempts=1))
    bench.provider.lost.add(job_id)

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts) == (True, 1)
    assert "engine ended" in " ".join(await _reasons(bench, job_id))


async def test_a_job_whose_own_sandbox_dies_uses_up_an_attempt(bench: Bench) -> None:
    bench.provider.die_after_command = [SandboxDied("It is gone.")]
    job_id = await bench.submit(make_spec("steps", max_attempts=1))

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.attempts) == ("SandboxDied", 1)


async def test_a_job_that_ends_each_engine_uses_up_its_attempts_at_last(bench: Bench) -> None:
    bench.provider.die_after_command = [SandboxDied("It is gone.") for _ in range(99)]
    job_id = await bench.submit(make_spec("steps", max_attempts=2))
    bench.provider.lost.add(job_id)

    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.attempts) == ("SandboxDied", 2)
    assert bench.provider.opened == MAX_HOST_FAULTS + 2


async def test_a_missing_image_is_looked_for_on_each_host_and_then_ends_the_job(
    bench: Bench,
) -> None:
    bench.provider.fail_before = [ImageMissing("The image x is not here: build it.")] * 2
    other = make_worker("w2", host="h2")
    await bench.ledger.register(other, 600)
    job_id = await bench.submit(make_spec("write", max_attempts=1))

    await bench.run(bench.arrived.get_nowait())

    refused = await bench.ledger.get(job_id)
    assert (refused.state, refused.attempt) == (JobState.QUEUED, 0)
    assert "The image x is not here" in await _last_reason(bench, job_id)
    await bench.admission.pump()
    assert await bench.run(bench.arrived.get_nowait()) is None, "the same host does not try again"
    assert bench.provider.opened == 1
    assert "another host" in str((await bench.ledger.get(job_id)).waiting_for)

    bench.worker = other
    await bench.rest(job_id)
    await bench.work_off()

    result = await bench.ended(job_id)
    assert result.error is not None
    assert (result.error.type, result.attempts, bench.provider.opened) == ("ImageMissing", 1, 2)


async def test_a_missing_image_does_not_keep_a_host_from_other_jobs(bench: Bench) -> None:
    bench.provider.fail_before = [ImageMissing("The image x is not here: build it.")]
    ids = [await bench.submit(make_spec("write")) for _ in "ab"]

    await bench.work_off()

    assert [(await bench.ended(job_id)).success for job_id in ids] == [False, True]
    assert not bench.fitness.unfit


async def test_a_refused_job_runs_on_a_host_that_opens_its_sandbox(bench: Bench) -> None:
    bench.provider.fail_before = [SandboxStartFailed("The engine has too few processors.")]
    other = make_worker("w2", host="h2")
    await bench.ledger.register(other, 600)
    job_id = await bench.submit(make_spec("write", max_attempts=1))
    await bench.run(bench.arrived.get_nowait())

    bench.worker = other
    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.success, result.attempts) == (True, 1)


async def _reason(bench: Bench, record: JobRecord) -> str:
    occupied = await occupancy(
        bench.redis, bench.keys, [record], Workforce(await bench.ledger.workers())
    )
    return str(waiting_reason(record, occupied))


async def _reasons(bench: Bench, job_id: str) -> list[str]:
    events = await bench.journal.read(job_id)
    return [str(event.data["reason"]) for event in events if "reason" in event.data]


async def _last_reason(bench: Bench, job_id: str) -> str:
    return (await _reasons(bench, job_id))[-1]


async def _order(bench: Bench, *ids: str) -> list[str]:
    """The jobs in the order in which they were opened at last."""
    ready = {
        (event.at, job_id): job_id
        for job_id in ids
        for event in await bench.journal.read(job_id)
        if event.type is EventType.SANDBOX_READY
    }
    return [ready[key] for key in sorted(ready)]
