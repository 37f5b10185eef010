"""A client on a real Redis, and a hand that plays the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinitions,
    load_agent_definitions,
)
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.builders import make_result, make_worker
from tests.waits import eventually


@dataclass
class Hand:
    """Does by hand what workers do."""

    redis: Redis
    ledger: Ledger = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.redis, Keys())
        self.journal = Journal(self.redis, Keys())

    async def claim(self, job_id: str) -> Claim:
        await self.ledger.register(make_worker(), 600)
        await self.ledger.dispatch(1000)
        claim = await self.ledger.claim(job_id, make_worker(), 60)
        assert isinstance(claim, Claim), claim
        return claim

    async def say(self, job_id: str, text: str) -> None:
        await self.journal.append(job_id, 1, EventType.LOG, {"text": text})

    async def finish(self, claim: Claim, **fields: Any) -> None:
        job_id = claim.spec.id
        assert await self.ledger.finish(job_id, claim.token, make_result(job_id, **fields), {})


async def until_awaited(hand: Hand, job_id: str) -> None:
    """Wait until somebody listens for the end of a job."""
    await eventually(lambda: hand.redis.pubsub_channels(Keys().job_ended(job_id)))


@pytest.fixture
async def hand(redis_url: str) -> AsyncIterator[Hand]:
    async with connect(redis_url) as redis:
        yield Hand(redis)


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return load_settings(redis_url=redis_url, state_dir=tmp_path / "state")


@pytest.fixture
def definitions() -> AgentDefinitions:
    return load_agent_definitions()


@pytest.fixture
async def client(
    redis_url: str, settings: Settings, definitions: AgentDefinitions
) -> AsyncIterator[JobClient]:
    async with JobClient(redis_url, settings, definitions) as made:
        yield made
