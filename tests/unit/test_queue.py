"""What goes to the queue, and admission through a queue that fails."""

from __future__ import annotations

import json

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.redis_url import celery_url, check_redis_url
from fanout.orchestrator.jobs.store.admission import BATCH, Admission
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.queue import (
    LABEL_CHARACTERS,
    CeleryQueue,
    broker_settings,
    shown_arguments,
)
from tests.builders import make_spec, make_worker
from tests.queue import InMemoryQueue


@pytest.fixture
def ledger(redis: FakeAsyncRedis) -> Ledger:
    return Ledger(redis, Keys())


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("given", "canonical", "for_celery"),
    [
        ("valkey://:pw@h:1/3", "redis://:pw@h:1/3", "redis://:pw@h:1/3"),
        ("valkeys://h/0", "rediss://h/0", "rediss://h/0"),
        (
            "redis+sentinel://:p%3Bw@a:1,b/2?master_name=m",
            "sentinel://:p%3Bw@a:1,b/2?master_name=m",
            "sentinel://:p%3Bw@a:1/2;sentinel://:p%3Bw@b:26379/2",
        ),
        (
            "sentinel://u:p@a:1;sentinel://u:p@b:2/3?master_name=m",
            "sentinel://u:p@a:1,b:2/3?master_name=m",
            "sentinel://u:p@a:1/3;sentinel://u:p@b:2/3",
        ),
        (
            "sentinels://[::1]:5?master_name=m&db=4",
            "sentinels://[::1]:5?master_name=m&db=4",
            "sentinel://[::1]:5/4",
        ),
    ],
)
def test_other_spellings_of_a_url_are_understood(
    given: str, canonical: str, for_celery: str
) -> None:
    assert check_redis_url(given) == canonical
    assert celery_url(canonical) == for_celery


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sentinel://a:1,b:2/0", "master_name"),
        ("sentinel://a:1,b:x/0?master_name=m", "host:port"),
        ("sentinel://a:1,/0?master_name=m", "host:port"),
        ("sentinel://a:1/x?master_name=m", "number of the database"),
        ("sentinel://a:1/0?master_name=m&ssl_keyfile=/etc", "one is another"),
        ("sentinels://a:1/0?master_name=m&ssl_cert_reqs=none", "always verified"),
        ("localhost:6379", "it starts with redis://"),
        ("http://h", "it starts with redis://"),
    ],
)
def test_a_url_that_cannot_work_says_what_to_write(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as told:
        check_redis_url(url)
    assert "a:1" not in str(told.value)


def test_the_queue_asks_sentinels_with_their_own_login() -> None:
    url = "sentinel://:pw@a:1/0?master_name=m&sentinel_password=other"

    options = broker_settings(url, "mine")["broker_transport_options"]

    assert options["master_name"] == "m"
    assert options["sentinel_kwargs"] == {"password": "other"}
    assert options["global_keyprefix"] == "mine:queue:"
    assert "master_name" not in broker_settings("redis://h/0", "x")["broker_transport_options"]


@pytest.mark.parametrize("prefix", ["", "a:b", "a*", "-a", "a b", "x" * 65])
def test_a_prefix_that_others_keys_could_begin_with_is_refused(
    prefix: str,
) -> None:
    with pytest.raises(InvalidSetting, match="FANOUT_REDIS_PREFIX"):
        load_settings(redis_prefix=prefix)
