"""What Redis holds of a job, and that the second layout of a record is read like the first."""

from __future__ import annotations

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import CollectedChanges, CollectionState, ResultSoFar
from fanout.orchestrator.jobs.store.keys import Keys
from tests.builders import make_result, make_spec
from tests.integration.jobs.conftest import Hand

pytestmark = pytest.mark.redis


LIVE_ONLY = {"token", "dispatched", "dispatches", "claim", "claimed_at", "sequence", "so_far"}


async def test_the_record_of_an_ended_job_loses_what_only_a_live_one_needs(hand: Hand) -> None:
    [job_id] = await hand.ledger.submit([make_spec("count")])
    claim = await hand.claim(job_id)
    await hand.ledger.checkpoint(job_id, claim.token, ResultSoFar(), None)
    assert set(await hand.redis.hkeys(Keys().job(job_id))) >= LIVE_ONLY

    await hand.finish(claim, summary="done")

    assert not LIVE_ONLY & set(await hand.redis.hkeys(Keys().job(job_id)))
    assert (await hand.ledger.get(job_id)).description == "count"


async def test_nothing_of_a_forgotten_job_stays(hand: Hand) -> None:
    async def keys() -> set[str]:
        return {key async for key in hand.redis.scan_iter(f"{Keys.prefix}:*")}

    first, second = await hand.ledger.submit([make_spec(), make_spec()])
    await hand.finish(await hand.claim(first))
    await hand.finish(await hand.claim(second))
    await _in_second_layout(hand, second)
    now = await hand.ledger.now_ms()
    for job_id in (first, second):
        await hand.redis.zadd(f"{Keys.prefix}:ended", {job_id: now - 60_000})

    assert await hand.ledger.forget(1) == 2

    assert not [key for key in await keys() if first in key or second in key]


async def test_a_record_with_its_texts_in_keys_of_their_own_is_read_and_completed(
    client: JobClient, hand: Hand
) -> None:
    [job_id] = await hand.ledger.submit([make_spec("count", labels={"team": "a"})])
    claim = await hand.claim(job_id)
    pending = make_result(job_id, collection=CollectionState.PENDING)
    assert await hand.ledger.finish(job_id, claim.token, pending, {})
    await _in_second_layout(hand, job_id)

    assert (await client.get(job_id)).description == "count"
    assert (await hand.ledger.specification(job_id)).description == "count"
    assert '"count"' in (await hand.ledger.sketches([job_id]))[0].spec
    assert (await hand.ledger.accounts([job_id]))[0].labels == {"team": "a"}
    assert await hand.ledger.attach_changes(job_id, CollectedChanges())
    completed = await client.result(job_id)
    assert completed is not None
    assert completed.collection is CollectionState.DONE


async def _in_second_layout(hand: Hand, job_id: str) -> None:
    texts = {"spec": Keys().spec(job_id), "result": Keys().result(job_id)}
    for name, key in texts.items():
        await hand.redis.set(key, str(await hand.redis.hget(Keys().job(job_id), name)))
    await hand.redis.hdel(Keys().job(job_id), *texts)
