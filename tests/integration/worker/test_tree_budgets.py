"""Budgets that jobs share: a parent's limits bind its children, and a tree has its own."""

from __future__ import annotations

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import LimitReached
from fanout.orchestrator.jobs.result import JobResult, Usage
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import conversation, shell
from tests.integration.worker.children import DELEGATING, delegates
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

USAGE = {"usage": {"input_tokens": 1900, "output_tokens": 100}}
STEPS = [{**shell(f"sleep 0.1; echo {number} >> steps.txt"), **USAGE} for number in range(30)]
SLOW_STEPS = [{**shell(f"sleep 0.5; echo {number} >> steps.txt"), **USAGE} for number in range(6)]
SUMMED_UP = {"text": "Done.\n\n## Summary\nas far as it went", **USAGE}
TREE_TOKENS, CALL_TOKENS, SIDE_BY_SIDE = 60_000, 2000, 3
RESERVED_TOKENS = 16_000
"""About the least that a call of these agents reserves."""

SPLITS = {**delegates("spends a", "spends b", "spends c"), **USAGE}
SCRIPT = (
    conversation("splits", SPLITS, *STEPS, SUMMED_UP),
    conversation("spends", *STEPS, SUMMED_UP),
    conversation("steps", *SLOW_STEPS, SUMMED_UP),
)


place = place_fixture(
    *SCRIPT,
    scope="module",
    agents=DELEGATING,
    workers=1,
    concurrency=6,
    FANOUT_LIMITS__MAX_TREE_TOKENS=str(TREE_TOKENS),
    FANOUT_WORKER__LEASE_SECONDS="4",
)


async def results_of(client: JobClient, root_id: str) -> dict[str, JobResult]:
    """The results of a tree's jobs, once all have ended."""
    found = {}
    for record in await client.tree(root_id):
        found[record.id] = await client.wait(record.id, 60)
    return found


def tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


def told(result: JobResult) -> str:
    assert result.error is not None
    assert result.error.type == LimitReached.__name__, result.error
    return result.error.message


async def consumed(client: JobClient, job_id: str) -> Usage:
    return (await client._ledger.usage([job_id]))[0]


async def test_children_side_by_side_keep_their_trees_budget_and_leave_what_is_no_room_for_a_call(
    client: JobClient,
) -> None:
    root = await client.submit(make_spec("splits", agent="lead"))
    results = await results_of(client, root)
    await client.wait(root, 60)
    results |= await results_of(client, root)
    spent = sum(tokens(result.usage) for result in results.values())

    assert len(results) == 1 + SIDE_BY_SIDE
    assert TREE_TOKENS - 2 * RESERVED_TOKENS - CALL_TOKENS <= spent <= TREE_TOKENS
    for result in results.values():
        assert f"The limit max_tree_tokens={TREE_TOKENS} is reached" in told(result)
        assert result.summary
    whole = await consumed(client, root)
    assert tokens(whole) == spent
    assert whole.tool_calls == sum(result.usage.tool_calls for result in results.values())


async def test_a_parents_budget_binds_its_children_and_is_used_up_when_it_goes_on(
    client: JobClient,
) -> None:
    root = await client.submit(make_spec("splits", agent="lead", limits=Limits(max_model_calls=9)))
    own = await client.wait(root, 60)
    results = await results_of(client, root)
    children = [result for job_id, result in results.items() if job_id != root]

    assert len(children) == SIDE_BY_SIDE
    for child in children:
        assert f"The limit max_model_calls=9 of job {root} and its children is reached" in told(
            child
        )
        assert child.usage.model_calls < 8, "what was left of its parent's, shared"
        assert child.files_modified
    assert "The limit max_model_calls=9 for this job and its children is reached" in told(own)
    assert own.summary
    whole = await consumed(client, root)
    assert 9 <= whole.model_calls <= 9 + SIDE_BY_SIDE
    assert whole.model_calls - sum(child.usage.model_calls for child in children) == 1


async def test_root_jobs_of_one_session_share_a_trees_budget(client: JobClient) -> None:
    specs = [
        JobSpec(root_id="a-session", description="spends", agent="general-purpose")
        for _ in range(2)
    ]
    for spec in specs:
        await client.submit(spec)
    results = [await client.wait(spec.id, 60) for spec in specs]

    assert ["max_tree_tokens" in told(result) for result in results] == [True, True]
    spent = sum(tokens(result.usage) for result in results)
    assert spent <= TREE_TOKENS
    assert tokens(await consumed(client, "a-session")) == spent


@pytest.mark.slow
async def test_what_a_killed_worker_had_consumed_counts_once(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(make_spec("steps"))
    await until_event(client, job_id, EventType.MODEL_REPLY, 3)
    place.workers.pop().kill()
    place.start_worker(concurrency=6)
    result = await client.wait(job_id, 60)
    events = [event async for event in client.events(job_id, follow=False)]
    counted = sum(event.type is EventType.MODEL_REPLY for event in events)

    assert result.success, result.error
    assert result.attempts == 2
    spent = await consumed(client, job_id)
    assert spent.model_calls == result.usage.model_calls == counted == 7
    assert tokens(spent) == 7 * CALL_TOKENS
