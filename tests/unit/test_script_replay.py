"""A script that is run again after a death makes the same calls, whatever has arrived by then."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from fanout.orchestrator.scripts.calls import ScriptCall
from fanout.orchestrator.scripts.check import check_script
from fanout.orchestrator.scripts.run import (
    CallAnswers,
    ScriptError,
    ScriptValue,
    SettledCall,
    Waits,
    run_script,
)
from fanout.orchestrator.scripts.values import Handle, Result

BY_ARRIVAL = """
import asyncio

seen = []

async def reviewed(name):
    found = await agent("review " + name)
    seen.append(found.summary)
    return await agent(f"fix {name}, number {len(seen)}")

async def main():
    fixed = await asyncio.gather(*[reviewed(name) for name in inputs["names"]])
    return [len(fixed), len(seen)]
"""
"""What its second calls are depends on the order in which the results of the first arrive."""


CHANCE = random.Random(1)  # noqa: S311 - repeatable


class World(CallAnswers):
    """Results arrive in a random order, and are remembered in it; all else dies at each wait."""

    def __init__(self, chance: random.Random) -> None:
        self.asked: set[str] = set()
        self.tasks: list[str] = []
        self._arrived: list[str] = []
        self._chance = chance
        self._replayed = 0

    def wake(self) -> None:
        self._replayed = 0

    async def made(self, call: ScriptCall) -> None:
        if call.key not in self.asked:
            self.asked.add(call.key)
            self.tasks.append(call.arguments["task"])

    async def at_once(self, call: ScriptCall) -> Any:
        return Handle(call.key)

    async def next(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        if self._replayed == len(self._arrived):
            if self._chance.random() < 0.3:
                return None
            self._arrived.append(self._chance.choice(sorted(pending)))
        key = self._arrived[self._replayed]
        self._replayed += 1
        call = pending[key]
        return SettledCall(call, Result(key, ok=True, state="succeeded", summary=call.label))


@pytest.mark.parametrize("seed", range(5))
async def test_random_deaths_and_orders_ask_for_each_call_once(seed: int) -> None:
    world = World(random.Random(seed))  # noqa: S311 - repeatable
    ended: ScriptValue | Waits = Waits()
    wakes = 0
    while isinstance(ended, Waits):
        wakes += 1
        world.wake()
        names = [f"f{number}" for number in range(25)]
        ended = await run_script(BY_ARRIVAL, {"names": names}, world, seed="1")

    assert ended.value == [25, 25]
    assert wakes > 5
    assert len(world.tasks) == 50
    numbers = sorted(int(task.split()[-1]) for task in world.tasks if task.startswith("fix"))
    assert numbers == [*range(1, 26)]


class Ready(World):
    """All arrives at once."""

    async def next(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        call = pending[min(pending)]
        return SettledCall(call, Result(call.key, ok=True, state="succeeded"))


async def test_time_and_chance_are_the_same_in_each_run() -> None:
    source = """
import datetime, random
[random.random(), random.randint(0, 9**9), str(datetime.datetime.now()), hash("a")]
"""
    first = await run_script(source, {}, Ready(CHANCE), seed="a")
    again = await run_script(source, {}, Ready(CHANCE), seed="a")
    other = await run_script(source, {}, Ready(CHANCE), seed="b")

    assert isinstance(first, ScriptValue)
    assert isinstance(again, ScriptValue)
    assert isinstance(other, ScriptValue)
    assert first.value == again.value
    assert first.value[0] != other.value[0]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('await agent("x", agent="nobody")', "nobody"),
        ('found = await agent("x")\nfound.text', "no attribute"),
        ('agent("x")', "not awaited"),
        ("def f(:", "line 1"),
        ("def f():\n    yield 1", "line 2: scripts do not support yield"),
        ("while True: pass", "computed for longer"),
        ("open('/etc/passwd')", "open"),
        (" ", "empty"),
        ("x = 1\n" * 20_000, "64 KiB"),
    ],
)
async def test_a_script_is_checked_before_anything_runs(
    source: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.scripts.program.TURN_SECONDS", 1)
    problems = await check_script(source, {"general-purpose": ""})
    assert problem in "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('float("nan")', "such as NaN"),
        ("{'most': [1e999]}", "such as NaN or an infinite one"),
        ("10**6000", "too large a number"),
        ("a = []\nfor i in range(50_000):\n    a = [a]\na", "nested too deep"),
        ("{1, 2}", "such as a set"),
        ("{(1, 2): 3}", "keys that are no texts"),
    ],
)
async def test_a_value_that_json_lacks_is_refused_in_words(source: str, why: str) -> None:
    with pytest.raises(ScriptError, match="the script's value cannot be its result") as refused:
        await run_script(source, {}, World(CHANCE), seed="any")
    assert why in str(refused.value)


async def test_a_dry_run_finds_what_the_check_of_types_does_not() -> None:
    source = 'found = await agent("x")\nfound.output["a"] + "b"\n'
    agents = {"general-purpose": ""}
    assert await check_script(source, agents) == []
    (problem,) = await check_script(source, agents, replies=[{"reply": {"output": {"a": 1}}}])
    assert problem.startswith("line 2: TypeError")
    (problem,) = await check_script(source, agents, replies=[{"match": "y", "reply": ""}])
    assert "No reply fits agent('x')" in problem
