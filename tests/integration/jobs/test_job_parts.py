"""Lists of many jobs are read, and printed, in parts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from contextlib import nullcontext
from itertools import product
from typing import cast

import pytest

from fanout.orchestrator.cli.commands import inspection, waiting
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.client import JobClient, job_reader
from fanout.orchestrator.client.job_pages import JobFilter
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.state import LIVE_STATES, JobState
from fanout.orchestrator.jobs.store import records
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.worker_info import WorkerAbility
from tests.builders import make_spec, make_worker

pytestmark = pytest.mark.redis

JOBS, AT_ONCE, WORKERS = 20, 3, 7


@pytest.fixture
async def reader(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobReader]:
    """Twenty jobs, every third one cancelled and every fourth one labelled."""
    monkeypatch.setattr(job_reader, "RECORDS_AT_ONCE", AT_ONCE)
    async with connect(redis_url) as redis, JobReader(redis_url) as made:
        ledger = Ledger(redis, Keys())
        for number in range(JOBS):
            labels = {"team": "blue"} if number % 4 == 0 else {}
            (job_id,) = await ledger.submit([make_spec("a job", labels=labels)])
            if number % 3 == 0:
                await ledger.cancel(job_id)
        yield made


@pytest.mark.parametrize("few_live", [records.FEW_LIVE, 2])
@pytest.mark.parametrize("states", [None, LIVE_STATES, {JobState.CANCELLED}])
async def test_the_parts_are_the_list(
    reader: JobReader,
    monkeypatch: pytest.MonkeyPatch,
    few_live: int,
    states: Collection[JobState] | None,
) -> None:
    monkeypatch.setattr(records, "FEW_LIVE", few_live)
    for limit, labels in product((1, 4, 7, JOBS, 100), ({}, {"team": "blue"})):
        listed = await reader.list(states=states, labels=labels, limit=limit)
        parts = [part async for part in reader.parts(states=states, labels=labels, limit=limit)]

        assert [record.id for part in parts for record in part] == [job.id for job in listed]
        assert all(len(part) <= AT_ONCE for part in parts)


async def test_the_first_part_is_there_before_a_second_one_is_read(
    reader: JobReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = records.Records.get_many

    async def counted(self: records.Records, ids: list[str]) -> object:
        asked.append(len(ids))
        return await read(self, ids)

    monkeypatch.setattr(records.Records, "get_many", counted)
    parts = reader.parts(limit=JOBS)
    await anext(parts)
    assert asked == [AT_ONCE]
    await parts.aclose()


async def test_a_tree_is_read_in_parts_and_of_its_children_only_their_records(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SKETCHED_AT_ONCE", AT_ONCE)
    asked: list[str] = []
    read = records.Records.get_many

    async def noted(self: records.Records, ids: list[str]) -> object:
        asked.extend(ids)
        return await read(self, ids)

    async with connect(redis_url) as redis, JobReader(redis_url) as reader:
        (root,) = await Ledger(redis, Keys()).submit([make_spec()])
        below = {"root_id": root, "depth": 1}
        specs = [make_spec(**below, parent_id=root if n % 2 else "other") for n in range(JOBS)]
        ids = await Ledger(redis, Keys()).submit(specs)
        monkeypatch.setattr(records.Records, "get_many", noted)
        parts = [part async for part in reader.tree_parts(ids[3])]
        children = [part async for part in reader.tree_parts(root, parent_id=root)]

    assert [record.id for part in parts for record in part] == [root, *ids]
    assert [record.id for part in children for record in part] == ids[1::2]
    assert all(len(part) <= AT_ONCE for part in (*parts, *children))
    assert asked == [root, *ids, *ids[1::2]]


async def test_jobs_are_counted_without_their_records(
    reader: JobReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(records.Records, "get_many")
    assert await reader.pages.count(JobFilter(labels={"team": "blue"}), 100) == JOBS // 4
    assert await reader.pages.count(JobFilter(), 7) == 7


async def test_a_watch_of_all_jobs_holds_the_newest_that_ended(
    reader: JobReader, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_ENDED", 2)
    fetch = waiting._everything(cast(JobClient, reader))
    live = [record.id for record in await fetch()]
    async with connect(redis_url) as redis:
        for job_id in live[:5]:
            await Ledger(redis, Keys()).cancel(job_id)

    assert [record.id for record in await fetch()] == live[3:]
    assert [record.state for record in await fetch()][:3] == ["cancelled", "cancelled", "queued"]


@pytest.mark.parametrize("as_json", [False, True])
async def test_ps_prints_each_part_before_it_reads_the_next_one(
    reader: JobReader,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    as_json: bool,
) -> None:
    printed: list[str] = []
    read = records.Records.get_many

    async def noted(self: records.Records, ids: list[str]) -> object:
        printed.append(capsys.readouterr().out)
        return await read(self, ids)

    monkeypatch.setattr(records.Records, "get_many", noted)
    monkeypatch.setattr(inspection, "open_reader", lambda: nullcontext(reader))
    await inspection._ps(None, {}, JOBS, as_json=as_json)
    printed.append(capsys.readouterr().out)

    assert [text.count("a job") for text in printed] == [0, *[AT_ONCE] * (JOBS // AT_ONCE), 2]
    if not as_json:
        lines = "".join(printed).splitlines()
        assert len(lines) == 1 + JOBS, "there is one header"
        assert len({line.replace("[team=blue] ", "").index("a job") for line in lines[1:]}) == 1


async def test_the_workers_are_read_once_for_all_parts_and_compared_once_for_a_class(
    reader: JobReader, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(redis_url) as redis:
        ledger = Ledger(redis, Keys())
        for number in range(WORKERS):
            await ledger.register(make_worker(f"w{number}", agents=("other",)), 600)
        before = await redis.info("commandstats")
        compared: list[str] = []
        reads = WorkerAbility.reads

        def noted(self: WorkerAbility, wire: int, agent: str) -> bool:
            compared.append(self.name)
            return reads(self, wire, agent)

        monkeypatch.setattr(WorkerAbility, "reads", noted)
        parts = [part async for part in reader.parts(states={JobState.QUEUED}, limit=JOBS)]
        after = await redis.info("commandstats")

    assert len(parts) > 1
    reasons = {record.waiting_for for part in parts for record in part}
    assert reasons == {"agent general-purpose, which no worker has read yet"}
    asked = [stats["cmdstat_zrangebyscore"]["calls"] for stats in (before, after)]
    assert asked[1] - asked[0] <= 1 + JOBS // AT_ONCE + 1, "one of them is that of the workers"
    assert len(compared) == 1, "all workers are of one kind, and all jobs of one class"


def test_a_list_that_is_printed_in_parts_reads_as_one_printed_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = [{"id": "a", "text": "two\nlines\u2028here", "labels": {}}, {"id": "b"}, {"id": "c"}]
    for some in ([], jobs[:1], jobs):
        output.document({"jobs": some})
        with output.list_document("jobs") as add:
            add(some[:2])
            add(some[2:])
        printed = capsys.readouterr().out
        assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ConnectionError])
def test_a_list_that_is_cut_is_valid_json(
    capsys: pytest.CaptureFixture[str], stop: type[BaseException]
) -> None:
    def interrupted() -> None:
        with output.list_document("jobs") as add:
            add([{"id": "a"}])
            raise stop

    with pytest.raises(stop):
        interrupted()
    assert json.loads(capsys.readouterr().out) == {"jobs": [{"id": "a"}]}
