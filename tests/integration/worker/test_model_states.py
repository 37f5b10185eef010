"""Workers whose model has no quota left, is away or refuses its key: jobs wait, or say why not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.model_states import ANSWERED_SECONDS
from tests.builders import make_spec
from tests.integration.models.wires import Answer
from tests.quota_service import KEY, QuotaService, quota_service
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MODEL = "gemini-2.5-flash"
SLOTS = 10
"""The most requests that are in progress at once."""
OTHERS = ("gemini-2.5-pro", "gemini-2.0-flash", "gemini-2.5-flash-lite")


@pytest.fixture
def service() -> Iterator[QuotaService]:
    with quota_service() as service:
        yield service


@pytest.fixture
def place(install: Installer, service: QuotaService) -> Installation:
    return install(workers=1, concurrency=SLOTS, **service.environment())


@pytest.fixture
async def client(place: Installation) -> AsyncIterator[JobClient]:
    async with place.client() as client:
        await place.ready(client)
        yield client


async def submit(client: JobClient, count: int, model: str = "", **limits: float) -> list[str]:
    named = {"model": model} if model else {}
    jobs = [make_spec(f"task {n}", limits=Limits(**limits), **named) for n in range(count)]
    return list(await client.submit_many([(job, None) for job in jobs]))


async def states(client: JobClient, ids: Sequence[str]) -> Counter[str | None]:
    return Counter(await client.states(ids))


async def settled(client: JobClient, ids: Sequence[str], **expected: int) -> None:
    await eventually(
        lambda: states(client, ids), lambda found: found == Counter(expected), seconds=90
    )


async def waiting(client: JobClient, job_id: str) -> JobRecord:
    return await eventually(
        lambda: client.get(job_id), lambda record: record.waits_until is not None, seconds=30
    )


@pytest.mark.slow
async def test_344_agents_whose_quota_ends_after_ten_wait_and_finish_when_it_is_back(
    client: JobClient, service: QuotaService
) -> None:
    service.left[MODEL] = 10
    service.refusal = Answer(status=402, headers={"Retry-After": "12"})

    ids = await submit(client, 344)
    others = [await submit(client, 5, model) for model in OTHERS]

    for some in others:
        await settled(client, some, succeeded=5)
    await eventually(
        lambda: states(client, ids),
        lambda found: found["succeeded"] == 10 and not found["running"],
        seconds=60,
    )
    records = await client.records(ids)
    assert {record.attempt for record in records if record.state is not JobState.SUCCEEDED} == {0}
    one = await waiting(client, next(r.id for r in records if r.state is JobState.WAITING))
    assert f"model {MODEL}, which has no quota left (402); it is tried again at" in str(
        one.waiting_for
    )
    assert service.refused[MODEL] <= SLOTS, "those in progress, and none after it"
    service.left[MODEL] = 1_000

    await settled(client, ids, succeeded=344)

    assert service.refused[MODEL] <= SLOTS + 1, "and the trial, if the quota was back later"
    assert service.answered[MODEL] == 344
    results = [await client.result(job_id) for job_id in ids]
    assert {result.attempts for result in results if result} == {1}


@pytest.mark.parametrize("count", [60, pytest.param(344, marks=pytest.mark.slow)])
async def test_who_does_not_want_to_wait_is_told_why_and_keeps_what_was_done(
    client: JobClient, service: QuotaService, count: int
) -> None:
    service.left[MODEL] = 10
    ids = await submit(client, count, max_wait_seconds=0)

    await settled(client, ids, succeeded=10, failed=count - 10)

    assert service.refused[MODEL] <= SLOTS
    for record in await client.records(ids):
        if record.state is JobState.FAILED:
            assert record.error_type == "ModelClosed"
            assert "has no quota left (402)" in str(record.reason)


async def test_a_quota_that_was_used_up_before_a_job_was_submitted_ends_it_in_the_services_words(
    client: JobClient, service: QuotaService
) -> None:
    await settled(client, await submit(client, 1), succeeded=1)
    service.left[MODEL] = 0
    service.refusal = Answer(status=402, body='{"error": {"message": "Buy credits first."}}')
    # An answer is recorded that seldom: a younger record may stand for one after the submission.
    await asyncio.sleep(ANSWERED_SECONDS + 0.1)

    ids = await submit(client, 3)

    await settled(client, ids, failed=3)
    assert service.refused[MODEL] == 3
    (record, *_) = await client.records(ids)
    assert "Buy credits first." in str(record.reason)
    await settled(client, await submit(client, 1, OTHERS[0]), succeeded=1)


async def test_a_key_that_never_worked_ends_its_jobs_with_a_sentence(
    client: JobClient, service: QuotaService
) -> None:
    service.keys.clear()
    ids = await submit(client, 3)

    await settled(client, ids, failed=3)

    (record, *_) = await client.records(ids)
    assert "Check the model's name and its key" in str(record.reason)


async def test_a_worker_without_a_key_ends_its_jobs_with_a_sentence(
    place: Installation, client: JobClient, service: QuotaService
) -> None:
    ids = await submit(client, 3)
    await settled(client, ids, succeeded=3)
    place.stop()
    place.start_worker(SLOTS, GOOGLE_API_KEY="")

    ids = await submit(client, 3)

    await settled(client, ids, failed=3)
    (record, *_) = await client.records(ids)
    assert "Check the model's name and its key" in str(record.reason)


async def test_a_revoked_key_that_had_worked_is_waited_for_and_a_new_one_is_used(
    place: Installation, client: JobClient, service: QuotaService, tmp_path: Path
) -> None:
    await settled(client, await submit(client, 2), succeeded=2)
    service.keys = {"another-key-of-the-test"}
    ids = await submit(client, 12)
    record = await waiting(client, ids[0])
    assert "refuses the key, which had worked (401)" in str(record.waiting_for)
    assert service.refused[MODEL] <= SLOTS

    place.stop()
    place.start_worker(10, GOOGLE_API_KEY="another-key-of-the-test")

    await settled(client, ids, succeeded=12)
    assert KEY not in service.keys


async def test_a_service_that_fails_uses_no_attempt_and_a_killed_worker_loses_nothing(
    place: Installation, client: JobClient, service: QuotaService
) -> None:
    service.down = True
    ids = await submit(client, 12)
    record = await waiting(client, ids[0])
    assert "does not answer (503)" in str(record.waiting_for)
    place.workers[0].kill()
    place.start_worker(10)
    for _ in range(3):
        await asyncio.sleep(0)
        assert not (await states(client, ids))["failed"]
    service.down = False

    await settled(client, ids, succeeded=12)

    assert {record.attempt for record in await client.records(ids)} <= {1, 2}, "one was killed"


async def test_another_model_of_the_list_is_taken_first(
    client: JobClient, service: QuotaService
) -> None:
    service.left[MODEL] = 1

    ids = await submit(client, 12, f"{MODEL},{OTHERS[0]}")

    await settled(client, ids, succeeded=12)
    assert service.answered == {MODEL: 1, OTHERS[0]: 11}
