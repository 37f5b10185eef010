"""Only the attempt that holds a job writes to its journal as one."""

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.failures import LeaseLost
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand

pytestmark = pytest.mark.redis


async def test_an_attempt_that_lost_its_job_in_a_pause_writes_nothing(hand: Hand) -> None:
    (job_id,) = await hand.ledger.submit([make_spec()])
    first = await hand.claim(job_id)
    await hand.journal.append(job_id, 1, EventType.LOG, {"text": "held"}, token=first.token)
    assert await hand.ledger.fail_attempt(job_id, first.token, "lost")
    second = await hand.claim(job_id)

    with pytest.raises(LeaseLost):
        await hand.journal.append(job_id, 1, EventType.LOG, {"text": "late"}, token=first.token)
    await hand.finish(second)
    with pytest.raises(LeaseLost):
        await hand.journal.append(job_id, 2, EventType.LOG, {"text": "later"}, token=second.token)

    events = await hand.journal.read(job_id)
    assert [event.data["text"] for event in events if event.type is EventType.LOG] == ["held"]
