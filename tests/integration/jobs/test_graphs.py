"""Jobs that run after others, on a real Redis: what the ledger does when the others end."""

from __future__ import annotations

import heapq
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.graph import resolved
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.waiting import WaitingReasons
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from tests.builders import make_result, make_spec, make_worker

pytestmark = pytest.mark.redis

KEYS = Keys()
OF_GRAPHS = ("after", "before", "unlinked", "linking", "predecessors")
"""The families of keys that are empty when no job comes after another."""
NEAR = 1.1
"""How near to the shortest possible time all graphs together come."""


def job(name: str, *after: str, **fields: object) -> JobSpec:
    return make_spec(name, name=name, after=after, **fields)


@dataclass
class Floor:
    """A ledger, and workers that are played by hand."""

    redis: Redis
    slots: int = 1_000
    ledger: Ledger = field(init=False)
    ids: dict[str, str] = field(default_factory=dict)
    """By name, of the submission before."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.redis, KEYS)

    async def open(self, slots: int = 1_000) -> None:
        self.slots = slots
        policy = AdmissionPolicy(tree_jobs=10_000)
        await self.ledger.register(self.worker, 600, policy, 1)

    @property
    def worker(self) -> WorkerInfo:
        return make_worker(concurrency=self.slots)

    async def submit(self, *specs: JobSpec) -> list[str]:
        ids = await self.ledger.submit(resolved(specs))
        self.ids |= {
            spec.name: job_id for spec, job_id in zip(specs, ids, strict=True) if spec.name
        }
        return ids

    async def begin(self) -> dict[str, Claim]:
        """Run what may run now, by description."""
        found = {}
        for one in await self.ledger.dispatch(self.slots):
            claim = await self.ledger.claim(one.spec.id, self.worker, 600)
            assert isinstance(claim, Claim), claim
            found[one.spec.description] = claim
        return found

    async def end(self, claim: Claim, state: JobState = JobState.SUCCEEDED) -> None:
        job_id = claim.spec.id
        assert await self.ledger.finish(job_id, claim.token, make_result(job_id, state), {})

    async def run(self, *, failing: Iterable[str] = ()) -> list[str]:
        """Run what may run now to its end, and return its names."""
        claims = await self.begin()
        for name, claim in claims.items():
            await self.end(claim, JobState.FAILED if name in failing else JobState.SUCCEEDED)
        return sorted(claims)

    async def record(self, name: str) -> JobRecord:
        return await self.ledger.get(self.ids[name])

    async def waits_for(self, name: str) -> str | None:
        [record] = await WaitingReasons(self.redis, KEYS).explain([await self.record(name)])
        return record.waiting_for

    async def left(self) -> list[str]:
        """The keys of graphs that are left."""
        keys = [key async for key in self.redis.scan_iter("fanout:dispatch:*", count=1_000)]
        return sorted(key for key in keys if key.split(":")[2] in OF_GRAPHS)


@pytest.fixture
async def floor(redis_url: str) -> AsyncIterator[Floor]:
    async with connect(redis_url) as redis:
        made = Floor(redis)
        await made.open()
        yield made


async def test_a_job_runs_when_all_have_ended_that_it_comes_after_and_says_for_which_it_waits(
    floor: Floor,
) -> None:
    names = ["a", "b", "c", "d"]
    await floor.submit(job("last", *names), *map(job, names))

    claims = await floor.begin()
    assert sorted(claims) == names
    assert await floor.waits_for("last") == "the end of 4 jobs: a, b, c, …"
    for name in names[:3]:
        await floor.end(claims[name])
    assert await floor.waits_for("last") == "the end of 1 job: d"
    assert await floor.run() == []
    await floor.end(claims["d"])

    assert await floor.run() == ["last"]
    assert await floor.left() == []


async def test_what_comes_after_a_failed_job_is_not_run_and_names_it_unless_it_wants_to_run(
    floor: Floor,
) -> None:
    await floor.submit(
        job("a"), job("b", "a"), job("c", "b"), job("d", "c", on_failure="run"), job("e")
    )

    assert await floor.run(failing="a") == ["a", "e"]

    for name in "bc":
        record = await floor.record(name)
        assert (record.state, record.error_type) == ("cancelled", "NotRun")
        assert record.reason == (
            f"Not run: job a ({floor.ids['a']}) failed, after which it was to run."
        )
    assert await floor.run() == ["d"]
    assert await floor.left() == []


async def test_a_job_may_come_after_jobs_that_have_ended_and_those_that_no_longer_exist_are_refused(
    floor: Floor,
) -> None:
    [good, bad] = await floor.submit(make_spec("good"), make_spec("bad"))
    await floor.run(failing=["bad"])

    await floor.submit(job("x", good), job("y", bad), job("z", bad, on_failure="run"))

    assert (await floor.record("y")).error_type == "NotRun"
    assert await floor.run() == ["x", "z"]
    await floor.ledger.forget(0)
    with pytest.raises(InvalidJob, match=f"Job 2 of the list: after: there is no job {good}"):
        await floor.submit(make_spec("first"), make_spec("second", after=(good,)))
    assert await floor.ledger.ids() == []


async def test_cancelling_a_job_ends_those_behind_it_and_cancelling_one_behind_leaves_those_before(
    floor: Floor,
) -> None:
    await floor.submit(job("a"), job("b", "a"), job("c", "b"), job("d", "a"))

    await floor.ledger.cancel(floor.ids["d"])
    assert (await floor.record("a")).state == "queued"
    await floor.ledger.cancel(floor.ids["a"])

    assert (await floor.record("d")).error_type == "JobCancelled"
    assert "was cancelled" in str((await floor.record("c")).reason)
    assert await floor.run() == []
    assert await floor.left() == []


async def test_a_repeated_submission_with_keys_comes_after_the_jobs_of_the_first_one(
    floor: Floor,
) -> None:
    first = await floor.submit(job("a", idempotency_key="A"))

    again = await floor.submit(job("b", "a"), job("a", idempotency_key="A"))

    assert again[1] == first[0]
    assert await floor.run() == ["a"]
    assert await floor.run() == ["b"]


async def test_those_on_the_longest_path_run_first_below_priority(floor: Floor) -> None:
    await floor.open(slots=1)
    await floor.submit(
        job("alone"),
        job("short"), job("short-2", "short"),
        job("long"), job("long-2", "long"), job("long-3", "long-2"),
        job("urgent", priority=1), job("of-the-tree", "urgent", "alone"),
    )  # fmt: skip
    specs = await floor.ledger.get_many(floor.ids.values())
    first = {one.root_id for one in specs}

    order = [name for _ in specs for name in await floor.run()]

    assert len(first) == 3, "three trees, which take turns"
    assert order.index("long") < order.index("short-2")
    assert order.index("urgent") < order.index("alone")


async def test_an_end_that_an_earlier_release_does_not_tell_is_found(floor: Floor) -> None:
    await floor.submit(job("a"), job("b", "a"))
    [claim] = (await floor.begin()).values()
    due = await floor.redis.zrange("fanout:dispatch:predecessors", 0, 0, withscores=True)
    await floor.redis.delete("fanout:dispatch:predecessors")  # its scripts do not know it
    await floor.end(claim)
    await floor.redis.zadd("fanout:dispatch:predecessors", {due[0][0]: 1})  # a minute later

    assert await floor.run() == []
    await floor.ledger.reap()

    assert await floor.run() == ["b"]


@pytest.mark.parametrize("count", [1_000, pytest.param(9_998, marks=pytest.mark.slow)])
async def test_thousands_of_jobs_before_one_and_behind_one_take_bounded_steps(
    floor: Floor, count: int
) -> None:
    middle = [job(f"m{at}", "begin") for at in range(count)]
    specs = [job("begin"), *middle, job("end", *(str(one.name) for one in middle))]

    await floor.redis.config_resetstat()
    await floor.submit(*specs)
    stats = await floor.redis.info("commandstats")

    calls = stats["cmdstat_evalsha"]["calls"]
    commands = sum(kind["calls"] for name, kind in stats.items() if name != "cmdstat_info")
    assert calls >= len(specs) / 50
    assert commands / calls < 1_500, "a call takes a few milliseconds"
    assert await floor.run(failing=["begin"]) == ["begin"]
    await floor.ledger.reap()
    assert (await floor.ledger.state_counts()).states == {"failed": 1, "cancelled": count + 1}
    assert await floor.left() == []


@pytest.mark.parametrize("killed_at", ["links", "ends"])
async def test_whoever_is_killed_between_two_steps_loses_nothing(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """A client or a worker makes no further step; the next reaper does."""
    names = [f"m{at}" for at in range(60)]
    specs = [job("a"), *(job(name, "a") for name in names), job("z", *names)]
    if killed_at == "links":
        with monkeypatch.context() as killed:
            killed.setattr(Ledger, "_follow_rest", _nothing)
            await floor.submit(*specs)
        assert await floor.waits_for("z") == "the end of 60 jobs: m0, m1, m2, …"
        assert await floor.run() == ["a"]
    else:
        await floor.submit(*specs)
        assert await floor.run() == ["a"]
    assert len(await floor.begin()) < len(names)

    await floor.ledger.reap()
    await floor.ledger.reap()

    counts = (await floor.ledger.state_counts()).states
    assert counts["queued"] + counts["running"] == 61
    assert len(await floor.begin()) + counts["running"] == 60


async def _nothing(_: Ledger) -> None:
    """Does what a killed process does."""


@pytest.mark.parametrize(
    "graphs", [30, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_random_graphs_run_in_a_legal_order_and_nearly_as_fast_as_any_order_could(
    floor: Floor, graphs: int
) -> None:
    taken = shortest = 0.0
    for seed in range(graphs):
        drawn = Drawn.of(seed)
        await floor.open(drawn.slots)
        time = await drawn.run(floor)
        assert time <= drawn.list_scheduling_bound, seed
        taken, shortest = taken + time, shortest + drawn.lower_bound
    assert await floor.left() == []
    assert taken <= NEAR * shortest


@dataclass(frozen=True)
class Drawn:
    """A random graph, with the time that each job takes."""

    before: Sequence[Sequence[int]]
    seconds: Sequence[int]
    slots: int

    @classmethod
    def of(cls, seed: int) -> Drawn:
        drawn = random.Random(seed)  # noqa: S311 - repeatable
        count = drawn.randint(6, 18)
        density = drawn.choice((0.05, 0.15, 0.3))
        before = [[one for one in range(at) if drawn.random() < density] for at in range(count)]
        return cls(before, [drawn.randint(1, 9) for _ in range(count)], drawn.randint(2, 4))

    @property
    def longest(self) -> int:
        """The time of the longest path."""
        ends: list[int] = []
        for seconds, before in zip(self.seconds, self.before, strict=True):
            ends.append(seconds + max((ends[one] for one in before), default=0))
        return max(ends)

    @property
    def lower_bound(self) -> float:
        """No order is faster."""
        return max(self.longest, sum(self.seconds) / self.slots)

    @property
    def list_scheduling_bound(self) -> float:
        """Every order keeps it that leaves no slot empty while a job could run (Graham)."""
        return sum(self.seconds) / self.slots + (1 - 1 / self.slots) * self.longest

    async def run(self, floor: Floor) -> int:
        """Run the graph by a clock that jumps from end to end; return how long it takes."""
        specs = [
            make_spec(str(at), name=f"j{at}", root_id="tree", after=[f"j{one}" for one in before])
            for at, before in enumerate(self.before)
        ]
        random.Random(len(specs)).shuffle(specs)  # noqa: S311 - repeatable
        await floor.submit(*specs)
        now, running, ended = 0, list[tuple[int, int, Claim]](), set[int]()
        while len(ended) < len(specs):
            for name, claim in (await floor.begin()).items():
                assert ended.issuperset(self.before[int(name)]), "a job ran before another"
                heapq.heappush(running, (now + self.seconds[int(name)], int(name), claim))
            now, at, claim = heapq.heappop(running)
            await floor.end(claim)
            ended.add(at)
        return now
