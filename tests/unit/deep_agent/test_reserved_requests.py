"""Each request to a model reserves what it may use, and is settled with what it used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.deep_agent.budget import Budget, limit_reached
from fanout.orchestrator.deep_agent.failures import BudgetUsedUp, ModelDenied
from fanout.orchestrator.deep_agent.models.reserved_requests import reserving
from fanout.orchestrator.deep_agent.models.retries import ResilientModel
from fanout.orchestrator.deep_agent.models.tokens import ModelUsage
from tests.integration.scripts import call
from tests.unit.deep_agent.running import AT_ONCE, Run, scripted
from tests.waits import eventually

LIMIT = "The limit max_tokens=9 is reached (0 used)."


@dataclass
class Purse:
    """Writes down what it is told."""

    most: int | None = 5_000
    refuses: dict[str, Exception] = field(default_factory=dict)
    """By model."""
    calls: int | None = None
    """How many calls it has room for; None: for all."""
    reserved: list[tuple[str, str, int, int]] = field(default_factory=list)
    settled: list[tuple[str, ModelUsage, bool]] = field(default_factory=list)

    async def reserve(
        self, call: str, model: str, input_tokens: int, most_output_tokens: int
    ) -> int | None:
        if self.calls is not None and len(self.reserved) >= self.calls:
            raise BudgetUsedUp(LIMIT)
        if model in self.refuses:
            raise self.refuses[model]
        self.reserved.append((call, model, input_tokens, most_output_tokens))
        return self.most

    async def settle(self, call: str, model: str, used: ModelUsage, *, is_reply: bool) -> None:
        assert call in [one for one, *_ in self.reserved], model
        self.settled.append((call, used, is_reply))


def request(most: int | None = None) -> LlmRequest:
    config = types.GenerateContentConfig(max_output_tokens=most)
    return LlmRequest(contents=[types.UserContent("x" * 6_000)], config=config)


async def ask(model: ResilientModel, purse: Purse, most: int | None = None) -> list[Any]:
    with reserving(purse):
        return [response async for response in model.generate_content_async(request(most))]


async def test_each_attempt_reserves_anew_and_only_what_was_answered_costs_something() -> None:
    purse, used = Purse(), {"input_tokens": 70, "output_tokens": 7}
    await ask(
        scripted([{"text": "done", "error": {"status": 503, "times": 2}, "usage": used}]), purse
    )

    assert len({name for name, *_ in purse.reserved}) == 3
    assert [name for name, *_ in purse.settled] == [name for name, *_ in purse.reserved]
    assert [(found.tokens, is_reply) for _, found, is_reply in purse.settled] == [
        (0, False),
        (0, False),
        (77, True),
    ]


async def test_a_request_reserves_its_own_limit_else_8192_and_is_sent_with_what_it_got() -> None:
    purse, sent = Purse(), list[int | None]()

    inner = scripted([{"text": "done"}]).candidates[0]

    class Service(BaseLlm):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            sent.append(llm_request.config.max_output_tokens)
            async for response in inner.generate_content_async(llm_request, stream=stream):
                yield response

    model = ResilientModel(model="m", candidates=[Service(model=inner.model)], retries=AT_ONCE)
    await ask(model, purse)
    await ask(model, purse, 700)
    purse.most = None  # nothing binds it
    await ask(model, purse)

    assert [(size, most) for *_, size, most in purse.reserved] == [
        (2_000, 8_192),
        (2_000, 700),
        (2_000, 8_192),
    ]
    assert sent == [5_000, 5_000, None]
    assert len(purse.settled) == 2


async def test_a_cancelled_request_costs_its_input_and_one_that_was_never_sent_nothing() -> None:
    purse = Purse()
    asking = asyncio.create_task(ask(scripted([{"text": "never", "delay_seconds": 3600}]), purse))
    await eventually(lambda: purse.reserved)
    await cancel_and_wait(asking)

    class Shut:
        async def enter(self, *_: Any) -> None:
            await asyncio.sleep(3600)

    shut = scripted([{"text": "never"}])
    shut.rate_limiter = Shut()
    asking = asyncio.create_task(ask(shut, purse))
    await eventually(lambda: len(purse.reserved) == 2)
    await cancel_and_wait(asking)

    assert [(found.tokens, is_reply) for _, found, is_reply in purse.settled] == [
        (2_000, False),
        (0, False),
    ]


async def test_a_fallback_whose_price_is_unknown_is_passed_over() -> None:
    first, second = scripted([{"text": "a"}]), scripted([{"text": "b"}])
    first.candidates[0].model = "unpriced"
    model = ResilientModel(
        model="unpriced", candidates=[*first.candidates, *second.candidates], retries=AT_ONCE
    )
    purse = Purse(refuses={"unpriced": ModelDenied("its price is not known")})

    (response,) = await ask(model, purse)

    assert response.content.parts[0].text == "b"


async def test_a_run_without_room_for_its_next_call_ends_with_the_limit() -> None:
    purse, budget = Purse(calls=2), Budget()
    replies = [{"calls": [call("read_todos")]}] * 9
    with reserving(purse):
        run = await Run(scripted(replies), budget=budget).to_end()

    assert budget.reached == LIMIT
    assert run.text == f"{LIMIT} The work ended here, before it was finished."
    assert limit_reached(run.events[-1]) == LIMIT
    assert budget.usage.model_calls == 2
