"""The timeline of a job: what its record says of when it did what, on fakeredis with real Lua."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import SUBMIT_BATCH, Claim
from fanout.orchestrator.jobs.timeline import read_phases
from tests.builders import make_result, make_spec, make_worker

WORKER = make_worker(concurrency=9)

CONFLICT = {"path": "prices.py", "reason": "both sides changed the same lines"}


async def claimed(ledger, job_id: str) -> Claim:
    await ledger.dispatch(9)
    claim = await ledger.claim(job_id, WORKER, 60)
    assert isinstance(claim, Claim)
    return claim


async def family(ledger) -> tuple[Claim, Claim]:
    """A running root and its running child."""
    await ledger.submit([make_spec(id="root")])
    root = await claimed(ledger, "root")
    child = make_spec(id="child", root_id="root", parent_id="root", depth=1)
    await ledger.start("root", root.token, child, TreeBounds())
    return root, await claimed(ledger, "child")


def kinds(record) -> list[str]:
    return [str(phase.kind) for phase in record.phases]


async def test_a_record_says_when_a_job_ran_waited_verified_and_landed(ledger, redis):
    journal = Journal(redis, Keys())
    root, child = await family(ledger)
    failed = {"type": "AgentFailed", "message": "no"}
    result = make_result("child", state=JobState.FAILED, error=failed)
    await ledger.finish("child", child.token, result, {})
    verified = {"command": "make", "exit_code": 2, "seconds": 0.001, "output_tail": ""}
    await journal.append("root", 1, EventType.LANDING, {"children": ["child"], "before": "b"})
    await journal.append("root", 1, EventType.VERIFY, verified | {"children": ["child"]})
    out = {"id": "child", "outcome": "out", "conflicts": [CONFLICT], "reason": "It conflicts."}
    await journal.append("root", 1, EventType.CHILD_LANDED, out)
    await ledger.release("root", root.token, "the worker stops")

    [record, below] = await ledger.get_many(["root", "child"])

    shown = [one for one in kinds(record) if one not in ("landing", "verifying")]
    assert shown[-1] == "queued"
    assert "running" in shown
    assert all(one.end == two.begin for one, two in pairwise(record.phases))
    assert record.phases[-1].end is None
    assert (record.tasks_failed, record.tasks_unmerged) == (1, 1)
    assert below.landed.outcome == "out"
    assert below.landed.why == "prices.py: both sides changed the same lines"
    assert below.phases[-1].end == below.finished_at


async def test_what_lands_after_a_rework_is_no_conflict_of_the_run(ledger, redis):
    journal = Journal(redis, Keys())
    await family(ledger)
    for outcome, unmerged in (("sent back", 0), ("out", 1), ("out", 1), ("in", 0)):
        landed = {"id": "child", "outcome": outcome, "reason": "r"}
        await journal.append("root", 1, EventType.CHILD_LANDED, landed)
        assert (await ledger.get("root")).tasks_unmerged == unmerged, outcome


@pytest.mark.parametrize(
    "landed",
    [
        {},
        {"id": 7, "outcome": "out"},
        {"id": "stranger", "outcome": "out"},
        {"id": "other", "outcome": "out"},
        {"id": "child", "outcome": None, "conflicts": ["x", 7], "reason": {"a": []}},
        {"id": "child", "outcome": "out", "reason": "ä" * 500},
    ],
)
async def test_a_worker_changes_by_its_journal_the_records_of_its_own_children_only(
    ledger, redis, landed
):
    await family(ledger)
    await ledger.submit([make_spec(id="other")])
    await Journal(redis, Keys()).append("root", 1, EventType.CHILD_LANDED, landed)

    assert (await ledger.get("other")).landed is None
    assert await redis.exists("fanout:job:stranger") == 0
    child = (await ledger.get("child")).landed
    assert child is None or len(child.why.encode()) <= 410


async def test_jobs_of_one_submission_know_it_and_others_do_not(ledger):
    first = make_spec(id="a")
    await ledger.submit([first, make_spec(id="b")])
    await ledger.submit([make_spec(id="c")])
    await ledger.submit([make_spec(id="d"), make_spec(id="e", root_id="d")])
    records = await ledger.get_many("abcde")
    assert [one.batch for one in records] == ["a", "a", None, "d", None]


async def test_a_submission_that_takes_several_calls_is_one_group_and_a_repeated_one_joins_it(
    ledger,
):
    specs = [make_spec(id=f"j{n}", idempotency_key=f"k{n}") for n in range(2 * SUBMIT_BATCH + 1)]
    await ledger.submit(specs[: SUBMIT_BATCH + 1])
    again = [make_spec(id=f"again{n}", idempotency_key=f"k{n}") for n in range(len(specs))]
    ids = await ledger.submit(again)
    known = [one.id for one in specs[: SUBMIT_BATCH + 1]]
    assert ids[: len(known)] == known
    assert ids[len(known) :] == [one.id for one in again[len(known) :]]
    assert {one.batch for one in await ledger.get_many(ids)} == {"j0"}


async def test_a_timeline_of_any_length_stays_small(ledger, redis):
    journal = Journal(redis, Keys())
    await family(ledger)
    for _ in range(200):
        await journal.append("root", 1, EventType.VERIFY, {"seconds": 0.5, "exit_code": 0})
    assert await redis.hstrlen("fanout:job:root", "timeline") <= 3_000
    assert (await ledger.get("root")).phases[-1].end is None


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("", [("queued", 0, 10), ("running", 10, 100)]),
        ("running:10000", [("queued", 0, 10), ("running", 10, 100)]),
        (
            "running:10000 waiting:20000 queued:60000 running:61000",
            [
                *(("queued", 0, 10), ("running", 10, 20), ("waiting", 20, 60), ("queued", 60, 61)),
                ("running", 61, 100),
            ],
        ),
        (
            "running:10000 landing:20000 verify:40000:15000:1 landed:41000",
            [
                *(("queued", 0, 10), ("running", 10, 20), ("landing", 20, 25)),
                *(("verifying", 25, 40), ("landing", 40, 41), ("running", 41, 100)),
            ],
        ),
        # of another release, or damaged
        ("running:10000 dreaming:20000 x waiting:y", [("queued", 0, 10), ("running", 10, 100)]),
        # its beginning was cut
        ("waiting:50000", [("queued", 0, 10), ("running", 10, 50), ("waiting", 50, 100)]),
    ],
)
def test_a_timeline_is_read_as_phases_that_follow_each_other(stored, expected):
    phases = read_phases(stored, submitted_at=0, started_at=10, finished_at=100)
    assert [(str(one.kind), one.begin, one.end) for one in phases] == expected


def test_the_phase_of_a_live_job_has_no_end():
    [phase] = read_phases("", submitted_at=5, started_at=None, finished_at=None)
    assert (str(phase.kind), phase.begin, phase.end) == ("queued", 5, None)


@pytest.mark.parametrize(
    ("stored", "since", "kinds"),
    [
        ("running:10000", 20, ["queued", "running", "verifying"]),
        ("running:10000 verify:40000:20000:0", 20, ["queued", "running", "verifying", "running"]),
    ],
    ids=["it runs", "it has ended since"],
)
def test_a_verification_that_runs_is_a_phase_without_an_end(stored, since, kinds):
    times = {"submitted_at": 0, "started_at": 10, "finished_at": None}
    phases = read_phases(stored, **times, verifying_since=since)
    assert [str(one.kind) for one in phases] == kinds
    assert [one.end is None for one in phases] == [False] * (len(kinds) - 1) + [True]
