"""A ledger on fakeredis with real Lua; the module's WORKER lives."""

from __future__ import annotations

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger


@pytest.fixture
async def ledger(redis: FakeAsyncRedis, request: pytest.FixtureRequest) -> Ledger:
    ledger = Ledger(redis, Keys())
    await ledger.register(request.module.WORKER, 60)
    return ledger


@pytest.fixture
def journal(redis: FakeAsyncRedis) -> Journal:
    return Journal(redis, Keys())
