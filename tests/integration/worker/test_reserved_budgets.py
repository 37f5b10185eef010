"""Money is reserved before it is spent: many agents at once keep within one limit, side by side."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent import ModelUsage, price
from fanout.orchestrator.jobs.failures import InvalidJob, LimitReached
from fanout.orchestrator.jobs.spec import Limits
from tests.builders import make_spec
from tests.integration.models.wires import Answer, Gemini, call, text
from tests.integration.worker.children import DELEGATING
from tests.loopback import LoopbackHandler, gemini_environment, loopback_server
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MODEL, LEADS, AGENTS, DOLLARS = "gemini-2.5-flash", 2, 200, 1.0
ROOT, LEAD = "divides-among-leads", "divides-among-agents"
AT_ONCE = 20
"""As many requests are answered together: one by one none ever were."""
SPENT_OF_OUTPUT = 0.5
"""How much of the output that it may have an answer has."""


@dataclass
class Service:
    """A model's service that bills what it is asked, and answers when enough asks are there."""

    url: str
    dollars: float = 0.0
    limits: list[int] = field(default_factory=list)
    """The most output that each request asked for."""
    asking: int = 0
    most_asking: int = 0
    may_answer: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, is_parent: bool, most: int) -> None:
        with self.lock:
            self.limits.append(most)
            self.asking += 1
            self.most_asking = max(self.most_asking, self.asking)
            if self.asking >= AT_ONCE:
                self.may_answer.set()
        if not is_parent:
            self.may_answer.wait(60)

    def bill(self, usage: dict[str, int]) -> None:
        used = ModelUsage(
            input_tokens=usage["promptTokenCount"], output_tokens=usage["candidatesTokenCount"]
        )
        with self.lock:
            self.asking -= 1
            self.dollars += price(MODEL, used) or 0


class Handler(LoopbackHandler):
    def post(self) -> None:
        request, service = self.read_json(), self.state
        asked = json.dumps(request)
        most = request["generationConfig"]["maxOutputTokens"]
        is_parent = ROOT in asked or LEAD in asked
        service.begin(is_parent, most)
        if is_parent and "functionResponse" not in asked:
            kind, count = ("lead", LEADS) if ROOT in asked else ("general-purpose", AGENTS // LEADS)
            what = LEAD if ROOT in asked else "think"
            tasks = [f"{what} {number}" for number in range(count)]
            parts = [call("task", description=one, subagent_type=kind) for one in tasks]
        else:
            parts = [text("Thought.\n\n## Summary\nDone.")]
        output = 100 if is_parent else round(SPENT_OF_OUTPUT * most)
        usage = {"promptTokenCount": len(asked) // 4, "candidatesTokenCount": output}
        usage["totalTokenCount"] = sum(usage.values())
        service.bill(usage)
        self.send_json(200, {**Gemini().whole(Answer(parts=parts)), "usageMetadata": usage})


@pytest.fixture
def service() -> Iterator[Service]:
    with loopback_server(Handler, Service) as service:
        yield service


@pytest.fixture
def place(install: Installer, service: Service) -> Installation:
    settings: dict[str, Any] = {"agents": DELEGATING, "workers": 1, "concurrency": 100}
    return install(**settings, **gemini_environment(service.url), FANOUT_WORKER__LEASE_SECONDS="4")


async def test_two_hundred_agents_at_once_keep_within_a_dollar_and_not_one_by_one(
    client: JobClient, service: Service
) -> None:
    limits = Limits(max_cost_usd=DOLLARS)
    root = await client.submit(make_spec(ROOT, agent="lead", limits=limits))
    await client.wait(root, 240)
    agents = [
        record for record in await client.tree(root) if record.description.startswith("think")
    ]
    results = [await client.wait(agent.id, 60) for agent in agents]
    budget = await client.budget(root)

    assert len(results) == AGENTS
    assert service.dollars <= DOLLARS
    assert service.most_asking >= AT_ONCE
    done = [result for result in results if result.success]
    ended = [result.error for result in results if result.error is not None]
    assert len(done) >= AT_ONCE
    assert len(ended) == AGENTS - len(done) > 0
    assert {error.type for error in ended} == {LimitReached.__name__}
    assert all("The limit max_cost_usd=" in error.message for error in ended)
    assert budget.used.cost_usd == pytest.approx(service.dollars)
    assert (budget.reserved_cost_usd, budget.reserved_tokens) == (0, 0)
    assert budget.max_cost_usd == DOLLARS
    assert min(service.limits) >= 4096


@pytest.mark.slow
async def test_what_a_killed_worker_had_reserved_counts_as_spent_and_its_job_goes_on(
    place: Installation, client: JobClient, service: Service
) -> None:
    limits = Limits(max_cost_usd=DOLLARS)
    job_id = await client.submit(make_spec("think", limits=limits))
    await eventually(lambda: service.asking)
    reserved = await client.budget(job_id)

    place.workers.pop().kill()
    service.may_answer.set()
    place.start_worker(concurrency=1)
    result = await client.wait(job_id, 120)
    budget = await client.budget(job_id)

    assert reserved.reserved_cost_usd > 0
    assert result.success, result.error
    assert result.attempts == 2
    assert budget.reserved_cost_usd == 0
    assert budget.used.cost_usd == pytest.approx(
        reserved.reserved_cost_usd + (result.usage.cost_usd or 0)
    )


async def test_a_model_without_a_price_is_refused_under_a_budget_of_money(
    install: Installer, service: Service
) -> None:
    unpriced, limits = "gemini-of-tomorrow", Limits(max_cost_usd=DOLLARS)
    environment = {**gemini_environment(service.url), "FANOUT_MODEL": unpriced}
    place = await asyncio.to_thread(partial(install, workers=1, **environment))
    async with place.client() as client:
        await place.ready(client)
        with pytest.raises(InvalidJob, match=f"{unpriced}, whose price is not known"):
            await client.submit(make_spec("think", model=unpriced, limits=limits))
        # What the worker has by default is not known where the job is submitted.
        result = await client.wait(await client.submit(make_spec("think", limits=limits)), 60)

    assert result.error is not None
    assert f"max_cost_usd cannot be kept with {unpriced}, whose" in result.error.message
    assert service.limits == []
