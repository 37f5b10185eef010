"""A connection to Redis that breaks after the effect.

The client asks again, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.builders import make_result, make_spec, make_worker
from tests.integration.jobs.proxy import LossyRedis, lossy
from tests.services import RedisProcess

pytestmark = pytest.mark.redis

WORKER = make_worker("the-worker")


@dataclass
class Place:
    proxy: LossyRedis
    ledger: Ledger
    journal: Journal


@pytest.fixture
async def ledger_place(redis_server: RedisProcess, redis_url: str) -> AsyncIterator[Place]:
    assert redis_url
    async with lossy(redis_server.port) as proxy, connect(proxy.url) as redis:
        ledger = Ledger(redis, Keys())
        await ledger.register(WORKER, 60)
        yield Place(proxy, ledger, Journal(redis, Keys()))


async def dispatched(place: Place) -> str:
    (job_id,) = await place.ledger.submit([make_spec(max_attempts=1)])
    await place.ledger.dispatch(10)
    return job_id


async def claimed(place: Place) -> Claim:
    claim = await place.ledger.claim(await dispatched(place), WORKER, 10)
    assert isinstance(claim, Claim)
    return claim


async def test_a_submission_is_one_job(ledger_place: Place) -> None:
    spec = make_spec()
    ledger_place.proxy.lose_answer_to = spec.id.encode()

    assert await ledger_place.ledger.submit([spec]) == [spec.id]

    assert ledger_place.proxy.lost == 1
    assert await ledger_place.ledger.ids() == [spec.id]
    assert len(await ledger_place.journal.read(spec.id)) == 1


async def test_a_dispatch_is_had_by_the_process_that_asked_for_it(ledger_place: Place) -> None:
    (job_id,) = await ledger_place.ledger.submit([make_spec()])
    ledger_place.proxy.lose_answer_to = AdmissionPolicy().stored().encode()

    jobs = await ledger_place.ledger.dispatch(10)

    assert ledger_place.proxy.lost == 1
    assert [(job.spec.id, job.number) for job in jobs] == [(job_id, 1)]
    assert isinstance(await ledger_place.ledger.claim(job_id, WORKER, 10), Claim)


async def test_a_claim_is_had_by_the_worker_that_made_it(ledger_place: Place) -> None:
    job_id = await dispatched(ledger_place)
    ledger_place.proxy.lose_answer_to = WORKER.name.encode()

    claim = await ledger_place.ledger.claim(job_id, WORKER, 10)

    assert ledger_place.proxy.lost == 1
    assert isinstance(claim, Claim), claim
    assert claim.attempt == 1
    assert await ledger_place.ledger.beat({job_id: claim.token}, 10) == {job_id: "held"}
    assert await ledger_place.ledger.claim(job_id, WORKER, 10) == "running", (
        "a second message may not claim it"
    )


async def test_a_result_is_stored_once(ledger_place: Place) -> None:
    claim = await claimed(ledger_place)
    job_id = claim.spec.id
    ledger_place.proxy.lose_answer_to = b"the summary"

    await ledger_place.ledger.finish(
        job_id, claim.token, make_result(job_id, summary="the summary"), {}
    )

    assert ledger_place.proxy.lost == 1
    result = await ledger_place.ledger.result(job_id)
    assert result is not None
    assert result.summary == "the summary"
    states = [event.data["state"] for event in await ledger_place.journal.read(job_id)]
    assert states == ["queued", "running", "succeeded"]


async def test_an_event_stands_in_the_journal_once(ledger_place: Place) -> None:
    claim = await claimed(ledger_place)
    job_id = claim.spec.id
    ledger_place.proxy.lose_answer_to = b"unique text"

    used = {"model_calls": 1, "cost_usd": 0.5}
    await ledger_place.journal.append(
        job_id, 1, EventType.LOG, {"text": "unique text"}, "a line", used=used
    )

    assert ledger_place.proxy.lost == 1
    texts = [event.data.get("text") for event in await ledger_place.journal.read(job_id)]
    assert texts.count("unique text") == 1
    (charged,) = await ledger_place.ledger.usage([job_id])
    assert (charged.model_calls, charged.cost_usd) == (1, 0.5)
