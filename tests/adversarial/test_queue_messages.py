"""Who can write to the queue, and nothing else, can have no job run: messages can be signed."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Iterator

import pytest
from celery import Celery
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.queue import RUN_JOB, broker_settings
from fanout.orchestrator.jobs.store.signatures import HEADER, MessageSigner
from tests.builders import make_spec, make_worker
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

OLD, NEW, OTHER = "an-old-secret-key", "a-new-secret-key-", "somebody-elses-key"


def with_keys(*keys: str) -> dict[str, str]:
    return {"FANOUT_QUEUE__SIGNING_KEYS": json.dumps(keys)}


def client(place: Installation, *keys: str) -> JobClient:
    queue = {"signing_keys": keys}
    settings = load_settings(
        redis_url=place.redis.url, state_dir=place.folder / "state", queue=queue
    )
    return JobClient(place.redis.url, settings, place.definitions)


place = place_fixture(conversation("quick", shell("true"), DONE), **with_keys(OLD))


@pytest.fixture
def clients(place: Installation) -> Iterator[dict[str, JobClient]]:
    """Made outside of the loop: settings read files."""
    names = {"signed": (OLD,), "rotated": (NEW, OLD), "forged": (OTHER,), "unsigned": ()}
    return {name: client(place, *keys) for name, keys in names.items()}


def test_a_signature_is_of_one_message_and_one_key() -> None:
    signature = MessageSigner([OLD]).headers("job.1")[HEADER]

    assert MessageSigner([OLD]).accepts("job.1", "job", signature)
    assert MessageSigner([NEW, OLD]).accepts("job.1", "job", signature), "while keys are replaced"
    assert MessageSigner([]).accepts("job.1", "job", None), "nothing is checked without a key"
    assert not MessageSigner([OLD]).accepts("job.2", "job", signature)
    assert not MessageSigner([OLD]).accepts("job.1", "other", signature)
    assert not MessageSigner([NEW]).accepts("job.1", "job", signature)
    for wrong in (None, "", "x", 7, ["x"], {"a": 1}, "\ud800", signature.upper()):
        assert not MessageSigner([OLD]).accepts("job.1", "job", wrong)


@pytest.mark.parametrize("keys", ['["short"]', "not json", '[""]'])
def test_a_key_that_protects_nothing_is_refused_and_not_shown(
    keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANOUT_QUEUE__SIGNING_KEYS", keys)
    with pytest.raises(InvalidSetting) as told:
        load_settings()

    assert "short" not in str(told.value).replace("shorter", "")


async def test_an_older_message_of_a_job_claims_nothing() -> None:
    async with FakeAsyncRedis(decode_responses=True) as redis:
        ledger, worker = Ledger(redis, Keys()), make_worker()
        await ledger.register(worker, 60)
        (job_id,) = await ledger.submit([make_spec()])
        (first,) = await ledger.dispatch(1)
        claim = await ledger.claim(job_id, worker, 9, str(first.number))
        assert isinstance(claim, Claim)
        await ledger.release(job_id, claim.token, "stopped")
        (second,) = await ledger.dispatch(1)

        assert await ledger.claim(job_id, worker, 9, str(first.number)) == "a newer message"
        assert isinstance(await ledger.claim(job_id, worker, 9, str(second.number)), Claim)


@pytest.mark.slow
async def test_a_worker_with_a_key_obeys_signed_messages_only(
    place: Installation, clients: dict[str, JobClient]
) -> None:
    worker = place.start_worker()
    async with clients["signed"] as signed, clients["forged"] as forged:
        await place.ready(signed)
        assert (await signed.run(make_spec("quick"))).success

        worker.send(signal.SIGSTOP)  # or it might dispatch the job itself, with a signature
        job_id = await forged.submit(make_spec("quick"))
        forger = Celery("forger", set_as_current=False)
        forger.conf.update(broker_settings(place.redis.url, Keys().prefix))
        send = {"args": [job_id], "queue": "fanout", "task_id": f"{job_id}.1"}
        for headers in ({}, {HEADER: "x" * 64}, MessageSigner([OTHER]).headers(f"{job_id}.1")):
            await asyncio.to_thread(forger.send_task, RUN_JOB, headers=headers, **send)
        replayed = MessageSigner([OLD]).headers(f"{uuid.uuid4().hex}.1")
        await asyncio.to_thread(forger.send_task, RUN_JOB, headers=replayed, **send)
        worker.send(signal.SIGCONT)
        # One dispatched, four forged.
        await eventually(lambda: '"refused": 5' in worker.log.read_text())
        record = await signed.get(job_id)
        assert (record.state, record.attempt) == (JobState.QUEUED, 0)

        # The ledger holds the job, so a worker's reaper dispatches it again, with a signature.
        assert (await signed.wait(job_id, 60)).success


@pytest.mark.slow
async def test_a_key_is_replaced_while_both_are_in_use(
    place: Installation, clients: dict[str, JobClient]
) -> None:
    place.start_worker(**with_keys(OLD, NEW))
    async with clients["signed"] as before, clients["rotated"] as after:
        await place.ready(before)
        assert (await before.run(make_spec("quick"))).success
        assert (await after.run(make_spec("quick"))).success
