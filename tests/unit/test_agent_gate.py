"""Agents take turns: a bounded number is at work at once, and nobody holds a turn for long."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.workers import agent_gate
from fanout.workers.agent_gate import (
    STARTS_AT_ONCE,
    TURNS_AT_ONCE,
    AgentGate,
    Turns,
    TurnsPlugin,
)
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted


async def test_one_more_agent_starts_when_one_asks_its_model_although_none_has_ended() -> None:
    gate, entered = AgentGate(), asyncio.Event()

    async def enter() -> None:
        async with gate.turns():
            entered.set()

    async with AsyncExitStack() as running:
        started = [await running.enter_async_context(gate.turns()) for _ in range(STARTS_AT_ONCE)]
        waiting, cancelled = asyncio.create_task(enter()), asyncio.create_task(enter())
        await asyncio.sleep(0)
        assert not entered.is_set()
        await cancel_and_wait(cancelled)

        started[0].end()
        started[0].end()  # of its second request
        await entered.wait()
        await waiting
    async with AsyncExitStack() as again:
        for _ in range(STARTS_AT_ONCE):
            await again.enter_async_context(gate.turns())
        one_more = asyncio.create_task(enter())
        await asyncio.sleep(0)
        assert not one_more.done()
        await cancel_and_wait(one_more)


async def test_an_agent_that_takes_long_to_start_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_gate, "LONGEST_START_SECONDS", 0.01)
    gate = AgentGate()
    async with AsyncExitStack() as running, asyncio.timeout(60):
        started = [
            await running.enter_async_context(gate.turns()) for _ in range(2 * STARTS_AT_ONCE)
        ]
        assert len(started) == 2 * STARTS_AT_ONCE


async def test_agents_whose_replies_arrive_together_finish_one_after_the_other() -> None:
    done: list[int] = []
    async with AsyncExitStack() as running:
        agents = await _at_work(running, 3 * TURNS_AT_ONCE)

        async def take_turn(number: int) -> None:
            await agents[number].begin()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not any(other > number + TURNS_AT_ONCE for other in done)
            done.append(number)
            agents[number].end()

        await asyncio.gather(*map(take_turn, range(len(agents))))
    assert sorted(done) == list(range(len(agents)))


async def test_an_agent_whose_tool_returns_goes_before_those_whose_replies_came_later() -> None:
    went_on: list[str] = []
    async with AsyncExitStack() as running:
        first, *others = await _at_work(running, 2 * TURNS_AT_ONCE + 1)
        at_work, later = others[:TURNS_AT_ONCE], others[TURNS_AT_ONCE:]
        await first.begin()
        first.end()  # as after `LONGEST_TURN_SECONDS`
        for agent in at_work:
            await agent.begin()

        async def go(turns: Turns, name: str, *, begins: bool) -> None:
            await (turns.begin() if begins else turns.go_on())
            went_on.append(name)
            turns.end()

        tasks = [asyncio.create_task(go(agent, "later", begins=True)) for agent in later]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(go(first, "first", begins=False)))
        await asyncio.sleep(0)
        for agent in at_work:
            agent.end()
        await asyncio.gather(*tasks)
    assert went_on == ["first", *["later"] * len(later)]


async def test_an_agent_that_is_cancelled_while_its_turn_is_given_to_it_passes_it_on() -> None:
    async with AsyncExitStack() as running:
        *at_work, cancelled, last = await _at_work(running, TURNS_AT_ONCE + 2)
        for agent in at_work:
            await agent.begin()
        waiting = [asyncio.create_task(agent.begin()) for agent in (cancelled, last)]
        await asyncio.sleep(0)
        at_work[0].end()
        await cancel_and_wait(waiting[0])
        await waiting[1]
        assert waiting[0].cancelled()


async def test_several_tools_of_an_agent_are_one_turn() -> None:
    async with AsyncExitStack() as running:
        agents = await _at_work(running, TURNS_AT_ONCE + 1)
        for agent in agents[:-2]:
            await agent.begin()
        await asyncio.gather(*(agents[-2].begin() for _ in range(3)))
        last = asyncio.create_task(agents[-1].begin())
        await asyncio.sleep(0)
        assert not last.done(), "there is no turn for it yet"
        agents[-2].end()
        await last


async def test_a_tool_that_takes_long_holds_up_nobody() -> None:
    async with AsyncExitStack() as running:
        agents = await _at_work(running, 3 * TURNS_AT_ONCE)
        for agent in agents:
            await agent.begin()  # and none of them ends
        assert len(agents) > TURNS_AT_ONCE


async def test_an_agent_that_ends_in_its_turn_leaves_it_to_others() -> None:
    gate = AgentGate()
    for _ in range(2 * TURNS_AT_ONCE):
        async with gate.turns() as ended:
            await ended.begin()
    async with AsyncExitStack() as running:
        turns = [await running.enter_async_context(gate.turns()) for _ in range(TURNS_AT_ONCE)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(turn.begin() for turn in turns))
        assert len(turns) == TURNS_AT_ONCE


async def test_an_agent_takes_its_turn_after_a_reply_and_after_a_tool() -> None:
    async with AgentGate().turns() as turns:
        taken: list[str] = []

        async def begin() -> None:
            taken.append("reply")

        async def go_on() -> None:
            taken.append("tool")

        turns.begin, turns.go_on = begin, go_on
        run = Run(scripted([{"calls": [call("ls", path="/")]}, {"text": "done"}]))
        run.app.plugins.append(TurnsPlugin(turns))
        await run.to_end()
        assert taken == ["reply", "tool", "reply"]


async def _at_work(running: AsyncExitStack, number: int) -> list[Turns]:
    """Return the turns of agents of one gate that wait for their models."""
    gate, agents = AgentGate(), list[Turns]()
    for _ in range(number):
        agents.append(await running.enter_async_context(gate.turns()))
        agents[-1].end()
    return agents
