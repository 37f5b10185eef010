"""A ledger on fakeredis with real Lua; the module's WORKER lives."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger


@pytest.fixture
async def redis() -> AsyncIterator[FakeAsyncRedis]:
    async with FakeAsyncRedis(decode_responses=True) as client:
        yield client


@pytest.fixture
async def ledger(redis: FakeAsyncRedis, request: pytest.FixtureRequest) -> Ledger:
    ledger = Ledger(redis, Keys())
    await ledger.register(request.module.WORKER, 60)
    return ledger
