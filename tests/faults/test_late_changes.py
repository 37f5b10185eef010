"""The changes of a stopped job that are not collected in time follow after its end, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import JobCancelled
from fanout.orchestrator.jobs.result import CollectedChanges, CollectionState, JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.attempt.changes import ChangeCollections
from fanout.workers.sandbox.errors import EngineUnavailable
from fanout.workers.upkeep.late_changes import LateChanges
from fanout.workers.upkeep.own_ledger import OwnLedger
from tests.builders import make_spec, make_worker
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, shell

bench = bench_fixture(conversation("write", shell("echo one > file"), DONE))


async def collector(bench: Bench, worker: str = "w1", host: str = "h1") -> LateChanges:
    """The collector of a worker; a new one knows nothing of what others have begun."""
    me = make_worker(worker, host=host)
    own_ledger = await OwnLedger.of(bench.ledger)
    collections = ChangeCollections(bench.blobs)
    return LateChanges(bench.ledger, bench.provider, own_ledger, collections, lambda: me)


async def collect(bench: Bench, worker: str = "w1", host: str = "h1") -> None:
    made = await collector(bench, worker, host)
    await made.begin()
    await made.finish()


async def stopped_job(bench: Bench) -> str:
    """A job that was cancelled, and whose changes took too long."""
    job_id = await bench.submit(make_spec("write"))
    bench.provider.changes_may_go_on.clear()
    running = asyncio.create_task(bench.run(job_id))
    await bench.provider.collecting.wait()
    bench.heartbeats.stop(job_id, JobCancelled("The job was cancelled."))
    result = await running
    assert result is not None
    assert (result.state, result.collection) == (JobState.CANCELLED, CollectionState.PENDING)
    assert bench.uncollected.is_set()
    return job_id


async def reported(bench: Bench, result: JobResult) -> list[str]:
    """The files of a result, which its bundle has, too."""
    assert result.changes is not None
    listed = await asyncio.to_thread(_listed, await bench.blobs.fetch(result.changes))
    assert listed == [file.path for file in result.files_modified]
    return listed


def _listed(path: Path) -> list[str]:
    with ChangeBundle.open(path) as bundle:
        return [file.path for file in bundle.changes.files]


async def test_they_are_kept_and_completed_with_an_event(bench: Bench) -> None:
    job_id = await stopped_job(bench)
    own_ledger = await OwnLedger.of(bench.ledger)
    await bench.provider.reap(own_ledger.is_live, own_ledger.awaits_collection)
    assert bench.left_behind() == [job_id]

    await collect(bench)

    result = await bench.ended(job_id)
    assert (result.state, result.collection) == (JobState.CANCELLED, CollectionState.DONE)
    assert result.error is not None
    assert await reported(bench, result) == ["file"]
    (event,) = [
        one for one in await bench.journal.read(job_id) if one.type is EventType.CHANGES_COLLECTED
    ]
    assert event.data == {"files": 1}
    assert bench.left_behind() == []
    assert await bench.ledger.uncollected() == []


async def test_only_a_worker_of_the_same_host_takes_over_from_a_dead_one(bench: Bench) -> None:
    job_id = await stopped_job(bench)
    await bench.ledger.register(make_worker("w2"), 600)

    await collect(bench, "w2")  # w1 lives
    await bench.ledger.register(bench.worker, 0)
    await collect(bench, "w3", host="h2")
    assert (await bench.ended(job_id)).collection is CollectionState.PENDING
    await collect(bench, "w2")

    assert await reported(bench, await bench.ended(job_id)) == ["file"]


async def test_two_collectors_complete_a_result_once(bench: Bench) -> None:
    job_id = await stopped_job(bench)
    both = [await collector(bench), await collector(bench)]

    await asyncio.gather(*(one.begin() for one in both))
    await asyncio.gather(*(one.finish() for one in both))

    assert await reported(bench, await bench.ended(job_id)) == ["file"]
    events = [one.type for one in await bench.journal.read(job_id)]
    assert events.count(EventType.CHANGES_COLLECTED) == 1
    assert not await bench.ledger.attach_changes(job_id, CollectedChanges())
    assert not await bench.ledger.give_up_changes(job_id, "too late")


async def test_a_failure_that_may_pass_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_job_id: str) -> None:
        raise EngineUnavailable("The engine does not answer.")

    job_id = await stopped_job(bench)
    with monkeypatch.context() as outage:
        outage.setattr(bench.provider, "collect_changes", away)
        await collect(bench)
    assert (await bench.ended(job_id)).collection is CollectionState.PENDING
    assert bench.left_behind() == [job_id]

    await collect(bench)
    assert await reported(bench, await bench.ended(job_id)) == ["file"]


async def test_what_can_never_be_had_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are gone; the host has no worker any more."""
    gone = await stopped_job(bench)
    await bench.provider.discard(gone)
    await collect(bench)
    assert (await bench.ended(gone)).collection is CollectionState.LOST

    bench.provider.collecting.clear()
    lost = await stopped_job(bench)
    await bench.ledger.register(bench.worker, 0)
    monkeypatch.setattr("fanout.workers.upkeep.late_changes.LOST_SECONDS", 0.0)
    await collect(bench, "w3", host="h2")

    result = await bench.ended(lost)
    assert (result.collection, result.changes) == (CollectionState.LOST, None)
    assert "are lost" in result.without_changes
    last = (await bench.journal.read(lost))[-1]
    assert last.data == {"lost": "The host of its files is lost."}


async def test_a_forgotten_job_is_collected_no_more(bench: Bench) -> None:
    await stopped_job(bench)

    await bench.ledger.forget(-1)

    assert await bench.ledger.uncollected() == []
