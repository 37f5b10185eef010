"""Readers of a journal that are left without being closed, as `break` leaves them."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.builders import make_spec
from tests.waits import eventually

pytestmark = pytest.mark.redis

READERS = 50


async def first_event(reader: JobReader, job_id: str) -> str:
    async for event in reader.events(job_id):
        return event.id
    raise AssertionError("The journal has no event.")


async def submit(redis_url: str, count: int) -> list[str]:
    async with connect(redis_url) as redis:
        return await Ledger(redis, Keys()).submit([make_spec() for _ in range(count)])


def test_a_loop_can_end_while_its_abandoned_readers_are_open(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: complaints.append(str(given)))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def read() -> None:
        ids = await submit(redis_url, READERS)
        async with JobReader(redis_url) as reader:
            await asyncio.gather(*(first_event(reader, job_id) for job_id in ids))

    loop.run_until_complete(read())
    loop.run_until_complete(loop.shutdown_asyncgens())
    pending = asyncio.all_tasks(loop)
    loop.close()
    del loop
    gc.collect()

    assert not pending
    assert complaints == []


async def test_channels_without_a_reader_are_unsubscribed_and_can_be_followed_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id, other] = await submit(redis_url, 2)
    async with connect(redis_url) as redis, JobReader(redis_url) as reader:

        async def subscribed() -> list[str]:
            channels: Any = await redis.pubsub_channels(Keys().journal_changed("*"))
            return sorted(channels)

        async def is_unsubscribed() -> bool:
            return await subscribed() == []

        for _ in range(2):
            await first_event(reader, job_id)
            await first_event(reader, other)
            await eventually(is_unsubscribed)

        monkeypatch.setattr("fanout.orchestrator.jobs.store.journal.POLL_SECONDS", 600.0)
        events = reader.events(job_id)
        await anext(events)
        assert await subscribed() == [Keys().journal_changed(job_id)]
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        await Ledger(redis, Keys()).cancel(job_id)
        async with asyncio.timeout(60):  # a poll would come later
            assert (await following).ends_job
        await events.aclose()
