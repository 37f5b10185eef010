"""How Redis stores records, and that the earlier form of one is read like today's."""

from __future__ import annotations

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import CollectedChanges, CollectionState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from tests.builders import make_result, make_spec
from tests.integration.jobs.conftest import Hand

pytestmark = pytest.mark.redis


async def test_records_are_compact_while_a_job_waits_and_when_it_has_ended(hand: Hand) -> None:
    [job_id] = await hand.ledger.submit([make_spec("count " * 1000)])
    assert await hand.redis.object("encoding", Keys().job(job_id)) == "listpack"

    claim = await hand.claim(job_id)
    await hand.journal.append(job_id, 1, EventType.LOG, {"text": "x"}, "a long line " * 10)
    assert await hand.redis.object("encoding", Keys().job(job_id)) == "hashtable"
    await hand.finish(claim, summary="done " * 100)

    assert await hand.redis.object("encoding", Keys().job(job_id)) == "listpack"
    assert (await hand.ledger.get(job_id)).description == "count " * 1000
    result = await hand.ledger.result(job_id)
    assert result is not None
    assert result.summary == "done " * 100


async def test_nothing_of_a_forgotten_job_stays(hand: Hand) -> None:
    async def keys() -> set[str]:
        return {key async for key in hand.redis.scan_iter(f"{Keys.prefix}:*")}

    first, second = await hand.ledger.submit([make_spec(), make_spec()])
    await hand.finish(await hand.claim(first))
    await hand.finish(await hand.claim(second))
    now = await hand.ledger.now_ms()
    for job_id in (first, second):
        await hand.redis.zadd(f"{Keys.prefix}:ended", {job_id: now - 60_000})

    assert await hand.ledger.forget(1) == 2

    assert not [key for key in await keys() if first in key or second in key]


async def test_a_record_with_its_texts_as_fields_is_read_and_completed(
    client: JobClient, hand: Hand
) -> None:
    [job_id] = await hand.ledger.submit([make_spec("count", labels={"team": "a"})])
    claim = await hand.claim(job_id)
    pending = make_result(job_id, collection=CollectionState.PENDING)
    assert await hand.ledger.finish(job_id, claim.token, pending, {})
    await _in_earlier_form(hand, job_id)

    assert (await client.get(job_id)).description == "count"
    assert (await hand.ledger.specification(job_id)).description == "count"
    assert '"count"' in (await hand.ledger.sketches([job_id]))[0].spec
    assert (await hand.ledger.accounts([job_id]))[0].labels == {"team": "a"}
    assert await hand.ledger.attach_changes(job_id, CollectedChanges())
    completed = await client.result(job_id)
    assert completed is not None
    assert completed.collection is CollectionState.DONE


async def _in_earlier_form(hand: Hand, job_id: str) -> None:
    texts = {"spec": Keys().spec(job_id), "result": Keys().result(job_id)}
    fields = {name: str(await hand.redis.get(key)) for name, key in texts.items()}
    await hand.redis.hset(Keys().job(job_id), mapping=fields)
    await hand.redis.delete(*texts.values())
