"""A cancel, and the deadline, at every arrow of an attempt: before the effect and after it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import JobCancelled
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.local.sandbox import LocalSandbox
from tests.builders import make_spec
from tests.faults.stopping import AGENTS, LATE_SECONDS
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, shell
from tests.integration.worker.children import delegates

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation("^write$", shell("echo made > made.txt"), shell("echo more >> made.txt"), DONE),
    conversation("^delegate$", shell("echo made > made.txt"), delegates("write", "write"), DONE),
)
TIMEOUT_SECONDS = 12.0
LEASE_SECONDS = 8.0
"""A busy machine must not let leases lapse; a cancel that comes with the claim waits for the next
beat."""
APART_SECONDS = 0.5
ENTRIES = 10
"""What the job `write` writes into its journal, and what `delegate` does before it parks, are
fewer."""
EFFECTS: list[tuple[type | str, str]] = [
    ("ledger", "claim"),
    ("ledger", "park"),
    ("ledger", "finish"),
    ("blobs", "put_file"),
    ("provider", "discard"),
    (LocalProvider, "_unpacked"),
    (LocalSandbox, "run"),
    (LocalSandbox, "changes"),
    (LocalSandbox, "close"),
]
Stop = Callable[[], Awaitable[None]]


bench = bench_fixture(*SCRIPT, agents=AGENTS, lease_seconds=LEASE_SECONDS, real_redis=True)


def at_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, effect: tuple[Any, str], when: str, stop: Stop
) -> None:
    """Do that before or after the first such call."""
    target, method = effect
    target = getattr(bench, target) if isinstance(target, str) else target
    real, calls = getattr(target, method), 0

    async def stopped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        first = calls == 1
        if first and when == "before":
            await stop()
        answer = await real(*arguments, **named)
        if first and when == "after":
            await stop()
        return answer

    monkeypatch.setattr(target, method, stopped)


def at_entries(bench: Bench, stops: dict[str, tuple[int, str, Stop]]) -> set[str]:
    """Do that before or after an entry of a job's journal.

    By job, the entry's number, when, and what.

    Returns the jobs for which it was done, as they come.
    """
    append, counts, fired = bench.journal.append, Counter[str](), set[str]()

    async def stopped(job_id: str, *arguments: Any, **named: Any) -> str:
        counts[job_id] += 1
        number, when, stop = stops.get(job_id, (0, "", None))
        is_its_turn = stop is not None and counts[job_id] == number
        if is_its_turn and when == "before":
            fired.add(job_id)
            await stop()
        event_id = await append(job_id, *arguments, **named)
        if is_its_turn and when == "after":
            fired.add(job_id)
            await stop()
        return event_id

    bench.journal.append = stopped
    return fired


async def cancel(bench: Bench, job_id: str) -> None:
    """Cancel a job; its worker hears it at once."""
    await bench.ledger.cancel(job_id)
    bench.heartbeats.stop(job_id, JobCancelled("The job was cancelled."))


async def work_off(bench: Bench) -> None:
    """Everything that is delivered, side by side, until nothing more comes."""
    while not bench.arrived.empty():
        arrived = [bench.arrived.get_nowait() for _ in range(bench.arrived.qsize())]
        async with asyncio.timeout(120):
            await asyncio.gather(*map(bench.run, arrived))
        await bench.ledger.reap()
        await bench.admission.pump()


async def all_is_over(bench: Bench) -> None:
    """Every job has ended, and holds nothing."""
    assert await bench.ledger.ids(live_only=True) == []
    redis = bench.ledger._redis
    for pattern in ("leases", "deadlines", "cancelling", "active:*", "host:*", "awaited:*"):
        assert await redis.keys(f"fanout:{pattern}") == [], pattern
    await bench.provider.reap(bench.ledger.is_live)
    assert bench.left_behind() == []


@pytest.mark.parametrize("what", ["write", "delegate"])
async def test_a_cancel_at_any_entry_of_the_journal(bench: Bench, what: str) -> None:
    specs = {
        (number, when): make_spec(what, agent="lead")
        for number in range(1, ENTRIES)
        for when in ("before", "after")
    }
    stops = {
        spec.id: (number, when, partial(cancel, bench, spec.id))
        for (number, when), spec in specs.items()
    }
    fired = at_entries(bench, stops)
    await bench.ledger.submit([*specs.values()])
    await bench.admission.pump()

    await work_off(bench)

    await all_is_over(bench)
    for (number, when), spec in specs.items():
        states = await bench.states(spec.id)
        assert sum(state in {"cancelled", "succeeded"} for state in states) == 1
        assert (states[-1] == "cancelled") == (spec.id in fired), (number, when, states)
    assert len(fired) > ENTRIES


async def test_the_deadline_at_any_entry_of_the_journal(bench: Bench) -> None:
    limits = [TIMEOUT_SECONDS + at * APART_SECONDS for at in range(2 * ENTRIES)]
    specs = [
        make_spec("write", agent="lead", limits=Limits(timeout_seconds=limit)) for limit in limits
    ]
    stops = {
        spec.id: (1 + at // 2, ("before", "after")[at % 2], partial(asyncio.sleep, 600))
        for at, spec in enumerate(specs)
    }
    fired = at_entries(bench, stops)
    await bench.ledger.submit(specs)
    await bench.admission.pump()

    await work_off(bench)

    await all_is_over(bench)
    for spec, limit in zip(specs, limits, strict=True):
        result = await bench.ended(spec.id)
        expected = JobState.TIMED_OUT if spec.id in fired else JobState.SUCCEEDED
        assert result.state is expected, (stops[spec.id], result.error)
        assert result.execution_seconds < limit + LATE_SECONDS, stops[spec.id]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect[1])
async def test_a_cancel_at_every_effect(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, effect: tuple[Any, str], when: str
) -> None:
    spec = make_spec("delegate" if effect[1] == "park" else "write", agent="lead")

    at_call(bench, monkeypatch, effect, when, partial(cancel, bench, spec.id))
    await bench.submit(spec)
    await work_off(bench)

    result = await bench.ended(spec.id)
    committed = effect[1] == "discard" or effect == ("ledger", "finish")
    assert result.state is (JobState.SUCCEEDED if committed else JobState.CANCELLED)
    if effect[1] in {"changes", "put_file"} or (effect[1], when) in {
        ("run", "after"),
        ("close", "before"),
    }:
        assert [file.path for file in result.files_modified] == ["made.txt"]
    await all_is_over(bench)
