"""A bounded number of agents start at once, and nothing that an agent does later holds a place."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.workers import agent_gate
from fanout.workers.agent_gate import STARTS_AT_ONCE, AgentGate


async def test_one_more_agent_starts_when_one_asks_its_model_although_none_has_ended() -> None:
    gate, entered = AgentGate(), asyncio.Event()

    async def enter() -> None:
        async with gate.starting():
            entered.set()

    async with AsyncExitStack() as running:
        started = [
            await running.enter_async_context(gate.starting()) for _ in range(STARTS_AT_ONCE)
        ]
        waiting, cancelled = asyncio.create_task(enter()), asyncio.create_task(enter())
        await asyncio.sleep(0)
        assert not entered.is_set()
        await cancel_and_wait(cancelled)

        started[0]()
        started[0]()  # of its second request
        await entered.wait()
        await waiting
    async with AsyncExitStack() as again:
        for _ in range(STARTS_AT_ONCE):
            await again.enter_async_context(gate.starting())
        assert gate._slots.locked()


async def test_an_agent_that_takes_long_to_start_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_gate, "LONGEST_START_SECONDS", 0.01)
    gate = AgentGate()
    async with AsyncExitStack() as running:
        for _ in range(2 * STARTS_AT_ONCE):
            await running.enter_async_context(gate.starting())
