"""What goes to the queue, and admission through a queue that fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.redis_url import celery_url
from fanout.orchestrator.jobs.store.admission import BATCH, Admission
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.queue import (
    LABEL_CHARACTERS,
    CeleryQueue,
    InMemoryQueue,
    shown_arguments,
)
from tests.builders import make_spec, make_worker


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    async with FakeAsyncRedis(decode_responses=True) as redis:
        yield Ledger(redis, Keys())


def queue_to(arrived: list[str]) -> InMemoryQueue:
    async def deliver(job_id: str) -> None:
        arrived.append(job_id)

    return InMemoryQueue(deliver)


async def test_a_message_holds_the_id_and_nothing_else(ledger: Ledger) -> None:
    arrived: list[str] = []
    queue = queue_to(arrived)
    await ledger.register(make_worker(), 60)
    (job_id,) = await ledger.submit(
        [make_spec("a secret task", context="more", labels={"team": "x"})]
    )

    await Admission(ledger, queue).pump()

    assert [json.loads(message) for message in queue.sent] == [[[job_id], {}, {}]]
    assert arrived == [job_id]


async def test_more_than_a_batch_is_sent_as_far_as_there_is_room(ledger: Ledger) -> None:
    arrived: list[str] = []
    queue = queue_to(arrived)
    await ledger.register(make_worker(concurrency=3 * BATCH), 60, AdmissionPolicy(tree_jobs=1000))
    ids = await ledger.submit([make_spec(root_id="t") for _ in range(4 * BATCH)])

    assert await Admission(ledger, queue).pump() == 3 * BATCH
    assert arrived == ids[: 3 * BATCH]


async def test_a_queue_that_fails_in_the_middle_sends_nothing_twice(ledger: Ledger) -> None:
    arrived: list[str] = []
    queue = queue_to(arrived)
    await ledger.register(make_worker(), 60)
    await ledger.submit([make_spec(root_id="t") for _ in range(4)])
    queue.fail_after = 1
    admission = Admission(ledger, queue)
    with pytest.raises(LedgerUnavailable):
        await admission.pump()

    assert await admission.pump() == 0, "what was taken waits for the reaper"
    assert len(arrived) == 1


def test_a_dashboard_is_shown_id_agent_and_labels_within_bounds() -> None:
    spec = make_spec("a secret task", context="a secret text", labels={"team": "x" * 500})

    shown_id, shown_labels = shown_arguments(spec)

    assert spec.id in shown_id
    assert "general-purpose" in shown_labels
    assert "secret" not in shown_id + shown_labels
    assert len(shown_labels) <= LABEL_CHARACTERS


async def test_a_broker_that_is_not_there_is_told_without_its_address(ledger: Ledger) -> None:
    await ledger.register(make_worker(), 60)
    await ledger.submit([make_spec()])
    queue = CeleryQueue("redis://:hunter2@127.0.0.1:1/0", "fanout", "fanout")

    with pytest.raises(LedgerUnavailable) as told:
        await Admission(ledger, queue).pump()
    await queue.close()

    assert "hunter2" not in str(told.value)
    assert "FANOUT_REDIS_URL" in str(told.value)


def test_celery_is_given_its_own_spelling_of_a_socket() -> None:
    assert celery_url("unix:///run/redis.sock") == "redis+socket:///run/redis.sock"
    assert celery_url("redis://h/0") == "redis://h/0"
