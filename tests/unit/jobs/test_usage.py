"""What a journal's entries charge, and that it goes with the jobs."""

from __future__ import annotations

from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.cli.commands.cost import By, Group, Groups
from fanout.orchestrator.client import job_reader
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.accounts import JobAccount, OwnAccounts, charged
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store import records
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.records import Records


class Reader(JobReader):
    """One of a Redis that a test has."""

    def __init__(self, redis: FakeAsyncRedis) -> None:
        self._redis = redis
        self._keys = Keys()
        self._records = Records(redis, self._keys)


SPENT = {"model_calls": 1, "input_tokens": 100, "output_tokens": 10, "cost_usd": 0.25}


async def test_an_entry_charges_its_job_all_above_it_and_its_tree_and_all_of_it_is_forgotten(
    redis: FakeAsyncRedis,
) -> None:
    ledger, journal = Ledger(redis, Keys()), Journal(redis, Keys())
    tree = {"root_id": "session", "description": "x"}
    top = JobSpec(id="top", **tree)
    below = JobSpec(id="below", parent_id="top", depth=1, **tree)
    beside = JobSpec(id="beside", **tree)
    alone = JobSpec(id="alone", description="x")
    ids = await ledger.submit([top, below, beside, alone])
    for job_id in ("below", "below", "beside", "alone"):
        await journal.append(job_id, 1, EventType.MODEL_REPLY, {}, used=SPENT)
    await journal.append("top", 1, EventType.TOOL_RESULT, {})

    session, *of_jobs = await ledger.usage(["session", *ids])
    assert [usage.model_calls for usage in of_jobs] == [2, 2, 1, 1]
    assert (session.model_calls, session.input_tokens, session.output_tokens) == (3, 300, 30)
    assert session.cost_usd == pytest.approx(0.75)
    assert (await ledger.usage(["nobody"]))[0].cost_usd is None

    for job_id in ids:
        await ledger.cancel(job_id)
    await ledger.forget(-60)
    assert [key async for key in redis.scan_iter("fanout:usage:*")] == []
    await journal.append("below", 1, EventType.MODEL_REPLY, {}, used=SPENT)
    assert [key async for key in redis.scan_iter("fanout:usage:*")] == [], (
        "nothing is kept for who is gone"
    )


@pytest.mark.parametrize("at_once", [1, 2, 500])
async def test_what_each_job_has_used_itself_is_summed_by_model_and_by_label(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(job_reader, "RECORDS_AT_ONCE", at_once)
    ledger, journal, reader = Ledger(redis, Keys()), Journal(redis, Keys()), Reader(redis)
    root = JobSpec(id="root", description="x", agent="lead", labels={"wave": "1"})
    child = JobSpec(id="child", parent_id="root", root_id="root", depth=1, description="x")
    below = JobSpec(id="below", parent_id="child", root_id="root", depth=2, description="x")
    batch = [JobSpec(id=name, root_id="first", description="x") for name in ("first", "second")]
    await ledger.submit([root, child, below, *batch])
    for job_id, model in [("root", "a"), ("child", "b"), ("below", "b"), ("second", "a@b")]:
        used = charged(SPENT, model)
        await journal.append(job_id, 1, EventType.MODEL_REPLY, {}, used=used)

    jobs = [job async for part in reader.accounts() for job in part]

    def grouped(by: By, label: str | None = None) -> dict[str, Group]:
        groups = Groups(by, label)
        for job in jobs:
            groups.add(job)
        return groups.sorted()

    calls = {job.id: job.account.usage.model_calls for job in jobs}
    assert calls == {"root": 1, "child": 1, "below": 1, "first": 0, "second": 1}
    assert {job.account.usage.cost_usd for job in jobs if job.id != "first"} == {0.25}
    models = {name: group.usage.model_calls for name, group in grouped(By.MODEL).items()}
    assert models == {"a": 1, "b": 2, "a@b": 1}
    labels = {name: group.jobs for name, group in grouped(By.LABEL, "wave").items()}
    assert labels == {"1": 3, "(no wave)": 2}
    assert list(grouped(By.AGENT)) == ["general-purpose", "lead"]


async def test_costs_are_summed_while_no_more_than_the_sums_of_open_trees_are_held(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reader, "RECORDS_AT_ONCE", 3)
    ledger, reader = Ledger(redis, Keys()), Reader(redis)
    for number in range(20):
        root = JobSpec(id=f"r{number}", description="x")
        child = JobSpec(
            id=f"c{number}", parent_id=root.id, root_id=root.id, depth=1, description="x"
        )
        await ledger.submit([root, child])
    held: list[int] = []
    account = OwnAccounts.account

    def noted(self: OwnAccounts, *job: Any) -> JobAccount:
        own = account(self, *job)
        held.append(len(self._below))
        return own

    monkeypatch.setattr(OwnAccounts, "account", noted)
    parts = [len(part) async for part in reader.accounts()]

    assert parts == [3] * 13 + [1]
    assert max(held) == 1, "a sum is held from the first child that is read to its parent"


async def test_the_states_of_a_tree_are_counted_in_steps(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, reader = Ledger(redis, Keys()), Reader(redis)
    ids = await ledger.submit([JobSpec(root_id="t", description="x") for _ in range(12)])
    for job_id in ids[::3]:
        await ledger.cancel(job_id)
    for at_once in (1, 5, 6, 12, 13):
        monkeypatch.setattr(records, "COUNTED_AT_ONCE", at_once)
        assert await reader.tree_states(["t", "none"]) == [{"queued": 8, "cancelled": 4}, {}]


async def test_the_next_page_of_runs_begins_behind_the_last_one(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reader, "RECORDS_AT_ONCE", 4)
    ledger, reader = Ledger(redis, Keys()), Reader(redis)
    ids = await ledger.submit([JobSpec(description="x") for _ in range(40)])
    looked: list[str] = []
    begun = Records.trees_begun_by

    async def noted(self: Records, some: list[str]) -> list[str]:
        looked.extend(some)
        return await begun(self, some)

    monkeypatch.setattr(Records, "trees_begun_by", noted)
    assert [run.root_id for run in await reader.past_runs(3, before=ids[10])] == ids[9:6:-1]
    assert looked == ids[9:5:-1], "no job of an earlier page, and no more than a step"
    assert await reader.past_runs(3, before="none") == []


@pytest.mark.parametrize("at_once", [1, 2, 500])
async def test_past_runs_are_listed_page_by_page_newest_first(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(job_reader, "RECORDS_AT_ONCE", at_once)
    ledger, reader = Ledger(redis, Keys()), Reader(redis)
    for number in range(5):
        root = JobSpec(id=f"r{number}", description=f"goal {number}")
        child = JobSpec(
            id=f"c{number}", parent_id=root.id, root_id=root.id, depth=1, description="part"
        )
        await ledger.submit([root, child])
    batch = [JobSpec(id=name, root_id="b1", description=name) for name in ("b1", "b2", "b3")]
    await ledger.submit(batch)
    await ledger.cancel("b2")

    newest = await reader.past_runs(3)
    older = await reader.past_runs(9, before=newest[-1].root_id)

    assert [run.root_id for run in (*newest, *older)] == ["b1", "r4", "r3", "r2", "r1", "r0"]
    assert newest[0].states == {"queued": 2, "cancelled": 1}
    assert newest[0].first is not None
    assert newest[0].first.description == "b1"
    assert newest[1].states == {"queued": 2}
