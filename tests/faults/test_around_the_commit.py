"""What fails when the agent is done, before its result is committed and after."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.workers.attempt.job_runner import retry_pause_seconds
from fanout.workers.sandbox.errors import SandboxDied
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, shell

bench = bench_fixture(conversation("write", shell("echo one > file"), DONE))


async def test_files_that_cannot_be_discarded_do_not_fail_a_job_that_succeeded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(job_id: str) -> None:
        raise SandboxDied("The steward is gone.")

    monkeypatch.setattr(bench.provider, "discard", gone)
    job_id, next_id = [await bench.submit(make_spec("write")) for _ in range(2)]

    results = await bench.work_off()

    assert [result.state for result in results if result] == [JobState.SUCCEEDED] * 2
    assert (await bench.ended(job_id)).success
    assert (await bench.ended(next_id)).success


async def test_a_claim_that_finds_redis_away_is_asked_for_until_it_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, failures = bench.ledger.claim, iter([LedgerUnavailable("Redis does not answer.")] * 2)

    async def away_at_first(*arguments: Any) -> Claim | str:
        for failure in failures:
            raise failure
        return await claim(*arguments)

    monkeypatch.setattr(bench.ledger, "claim", away_at_first)
    job_id = await bench.submit(make_spec("write"))
    await bench.run(job_id)
    assert (await bench.ended(job_id)).success


async def test_a_worker_that_stops_asks_for_no_claim_that_redis_does_not_give(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise LedgerUnavailable("Redis does not answer.")

    with monkeypatch.context() as outage:
        outage.setattr(bench.ledger, "claim", away)
        outage.setattr(bench.fitness, "unfit", "it stops")
        job_id = await bench.submit(make_spec("write"))
        assert await bench.run(job_id) is None

    await bench.run(job_id)
    assert (await bench.ended(job_id)).success


def test_a_job_with_many_attempts_does_not_wait_for_hours() -> None:
    assert [retry_pause_seconds(attempt) for attempt in (1, 2, 3, 100)] == [2, 8, 30, 30]


async def test_changes_that_take_too_long_are_asked_for_by_the_next_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.workers.attempt.changes.CHANGES_SECONDS", 0.2)
    monkeypatch.setattr("fanout.workers.attempt.job_runner.RETRY_PAUSE_SECONDS", 0.0)
    bench.provider.changes_may_go_on.clear()
    job_id = await bench.submit(make_spec("write"))
    await bench.run(bench.arrived.get_nowait())
    monkeypatch.undo()
    bench.provider.changes_may_go_on.set()

    await bench.work_off()

    result = await bench.ended(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert [file.path for file in result.files_modified] == ["file"]
