"""At most one attempt holds a job, also when Redis loses its last writes, as a killed one does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.builders import make_result, make_spec, make_worker

Value = TypeVar("Value")

LEASE_SECONDS = 9.0
FOR_EVER_SECONDS = 1e9
WORKER = make_worker(concurrency=10)
DIED = "its worker died"


class LostWrites(RuleBasedStateMachine):
    """Workers and a Redis that goes back to what it had saved, at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        server = FakeServer()
        self.redis = FakeAsyncRedis(server=server)
        self.ledger = Ledger(FakeAsyncRedis(server=server, decode_responses=True), Keys())
        self.claims: list[Claim] = []
        """Of all attempts that were ever begun: each may believe that it still runs."""
        self.saved: dict[bytes, bytes] = {}

    def teardown(self) -> None:
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(work)

    @initialize()
    def two_jobs_are_submitted_and_saved(self) -> None:
        self.run(self.ledger.register(WORKER, FOR_EVER_SECONDS))
        specs = [make_spec(max_attempts=100) for _ in range(2)]
        self.ids = self.run(self.ledger.submit(specs))
        self.redis_saves()

    @rule()
    def redis_saves(self) -> None:
        keys = self.run(self.redis.keys())
        self.saved = {key: self.run(self.redis.dump(key)) for key in keys}

    @rule()
    def redis_loses_what_it_has_not_saved(self) -> None:
        self.run(self.redis.flushall())
        for key, value in self.saved.items():
            self.run(self.redis.restore(key, 0, value))

    @rule()
    def what_waits_is_claimed(self) -> None:
        self.run(self.ledger.dispatch(10))
        for job_id in self.ids:
            claim = self.run(self.ledger.claim(job_id, WORKER, LEASE_SECONDS))
            if isinstance(claim, Claim):
                self.claims.append(claim)

    @rule(number=st.integers(0, 100), how=st.sampled_from(("release", "fail_attempt", "finish")))
    def an_attempt_ends(self, number: int, how: str) -> None:
        if not self.claims:
            return
        claim = self.claims[number % len(self.claims)]
        job_id, token = claim.spec.id, claim.token
        if how == "finish":
            self.run(self.ledger.finish(job_id, token, make_result(job_id), {}))
        else:
            self.run(getattr(self.ledger, how)(job_id, token, DIED))

    @invariant()
    def at_most_one_attempt_holds_a_job(self) -> None:
        for job_id in getattr(self, "ids", ()):
            tokens = [claim.token for claim in self.claims if claim.spec.id == job_id]
            answers = [self.run(self.ledger.beat({job_id: one}, LEASE_SECONDS)) for one in tokens]
            assert [answer[job_id] for answer in answers].count("held") <= 1


LostWrites.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


@pytest.mark.timeout(300)
class TestLostWrites(LostWrites.TestCase):
    """The machine as a test."""
