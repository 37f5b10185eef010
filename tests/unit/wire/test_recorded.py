"""Today's code reads what every release wrote; see `record.py` for how the files came about."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.cli.terminal.formatting import event_line
from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.changes import Changes
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.queue import RUN_JOB
from fanout.orchestrator.jobs.worker_info import WorkerInfo, read_worker
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.agent.session_journal import AttemptJournal
from fanout.workers.heartbeat import HeldLease
from tests.builders import make_worker
from tests.unit.wire.record import FIRST, FULL, RECORDED

VERSIONS = sorted(path.name for path in RECORDED.iterdir())


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> Path:
    return RECORDED / str(request.param)


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


async def put_journal(redis: FakeAsyncRedis, job_id: str, entries: list[dict[str, Any]]) -> None:
    for fields in entries:
        await redis.xadd(Keys().journal(job_id), fields)


@pytest.mark.parametrize("name", ["record-waiting", "record-ended", "record-queued-full"])
async def test_a_record_is_read_whole(recorded: Path, redis: FakeAsyncRedis, name: str) -> None:
    fields = load(recorded, name)
    job_id = json.loads(fields["spec"])["id"]
    await redis.hset(Keys().job(job_id), mapping=fields)

    record = await Ledger(redis, Keys()).get(job_id)

    stored = record.model_dump(
        mode="json", exclude_defaults=True, include=set(JobSpec.model_fields)
    )
    assert stored == json.loads(fields["spec"])
    assert (record.state, record.waiting_for) == (fields["state"], fields.get("waiting_for"))
    assert (await Ledger(redis, Keys()).specification(job_id)).model_dump() == record.model_dump(
        include=set(JobSpec.model_fields)
    )


async def test_a_queued_record_can_be_claimed_with_every_field(
    recorded: Path, redis: FakeAsyncRedis
) -> None:
    fields = load(recorded, "record-queued-full") | {"dispatched": "1"}
    await redis.hset(Keys().job(FULL.id), mapping=fields)

    claim = await Ledger(redis, Keys()).claim(FULL.id, make_worker(), 60)

    assert isinstance(claim, Claim), claim
    given = FULL.model_dump(mode="json")
    for version, added in versions.ADDED.items():
        for name in added if version > int(recorded.name) else ():
            *above, field = name.split(".")
            (given[above[0]] if above else given).pop(field)
    assert claim.spec == JobSpec.model_validate(given)


@pytest.mark.parametrize("name", ["result-small", "result-full"])
async def test_a_result_is_read_whole(recorded: Path, redis: FakeAsyncRedis, name: str) -> None:
    stored = load(recorded, name)
    await redis.hset(
        Keys().job("j"), mapping={"state": stored["state"], "result": json.dumps(stored)}
    )

    result = await Ledger(redis, Keys()).result("j")

    assert result is not None
    assert result.model_dump(mode="json").items() >= stored.items()


async def test_every_event_is_known_and_can_be_told(recorded: Path, redis: FakeAsyncRedis) -> None:
    await put_journal(
        redis, "j", load(recorded, "journal-conversation") + load(recorded, "journal-others")
    )

    events = await Journal(redis, Keys()).read("j")

    assert {event.type for event in events} == set(load(recorded, "forms")["EventType"])
    assert all(isinstance(event.type, EventType) for event in events)
    assert all(event_line(event) for event in events)
    assert [event.data["state"] for event in events if event.ends_job] == ["succeeded"]


async def test_a_recorded_conversation_can_be_gone_on_with(
    recorded: Path, redis: FakeAsyncRedis, tmp_path: Path
) -> None:
    await put_journal(redis, FULL.id, load(recorded, "journal-conversation"))
    claim = Claim(spec=FIRST, token=1, attempt=2, ran_seconds=1, submitted_at=0, started_at=0)
    lease = HeldLease(claim, 60, lambda _: None)
    journal = AttemptJournal(
        Journal(redis, Keys()), BlobStore(tmp_path.as_uri()), lease, lambda _line: None
    )

    history = await journal.history()

    assert history.final_answer_index is not None
    assert [answer.decision for answer in history.answers.values()] == ["approve"]
    assert sum(bool(event.get_function_responses()) for event in history.events) >= 3


async def test_an_approval_is_read_whole(recorded: Path, redis: FakeAsyncRedis) -> None:
    stored = load(recorded, "approval")
    asked = json.loads(stored["request"])
    await redis.hset(Keys().approval(asked["id"]), mapping=stored)
    await redis.zadd(Keys().approvals, {asked["id"]: 1})

    (approval,) = await Ledger(redis, Keys()).approvals()

    assert (
        approval.model_dump(mode="json").items()
        >= {**asked, "requested_at": approval.requested_at}.items()
    )


def test_changes_are_read_whole(recorded: Path) -> None:
    stored = load(recorded, "changes")
    assert Changes.model_validate(stored).model_dump(mode="json") == stored


def test_a_worker_is_read_whole(recorded: Path) -> None:
    stored = {name: str(value) for name, value in load(recorded, "worker").items()}
    assert {
        name: str(value) for name, value in read_worker(WorkerInfo, "w", stored).fields().items()
    }.items() >= stored.items()


def test_a_message_names_the_task_and_holds_the_id_only(recorded: Path) -> None:
    message = load(recorded, "celery-message")
    arguments, keywords, _ = json.loads(base64.b64decode(message["body"]))

    assert (message["headers"]["task"], message["content-type"]) == (RUN_JOB, "application/json")
    assert (arguments, keywords) == ([FULL.id], {})
