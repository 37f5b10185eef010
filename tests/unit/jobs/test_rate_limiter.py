"""The turns at a model under random interleavings, compared with plain Python.

A process of the release before has its own scripts, which work on the same keys.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from unittest import mock

import pytest
from fakeredis import FakeAsyncRedis
from fakeredis.commands_mixins import server_mixin
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.jobs.spec import ModelRate
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.lua_scripts import Scripts
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter
from tests.faults.releases import earlier_file, listed_releases

WINDOW_MS, LATE_MS, DOUBLING_MS, GRACE_MS = 10_000, 1_000, 2_000, 3_000
LATEST_MS = 15_000
SOON_LOOKS = 15
"""How often one asks at most in its last minute: after a quarter of the time that is left, at
least two seconds."""
TOKENS = (10, 40, 250)
"""What requests ask for; the last is more than the whole budget."""


@dataclass
class Reference:
    """What `model_turn` promises, at any time."""

    requests: int
    tokens: int
    now: int
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request -> when it got its turn, and what it counts."""
    row: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Who waits, in order -> its tokens, and until when it is waited for."""
    cut_until: int = 0

    def time(self) -> float:
        return self.now / 1000

    def ask(self, request: str, tokens: int, again: int) -> int:
        """How long the request has to wait; 0 is its turn. It asks again after `again`."""
        self.sent = {
            name: found for name, found in self.sent.items() if self.now - found[0] < WINDOW_MS
        }
        self.row = {name: found for name, found in self.row.items() if found[1] >= self.now}
        if request in self.sent:
            if self.now - self.sent[request][0] <= LATE_MS:
                return 0
            del self.sent[request]
        self.row.setdefault(request, (tokens, 0))
        planned = list(self.sent.values())
        turn = self.now
        for name, (wanted, _) in self.row.items():
            cost = self._cost(wanted)
            ends = sorted(
                {at + WINDOW_MS for at, _ in planned}
                | {self.now, self.cut_until, self._ramp(planned)}
            )
            turn = next(
                moment for moment in ends if moment >= turn and self._fits(planned, moment, cost)
            )
            if name == request:
                break
            planned.append((turn, cost))
        wait = turn - self.now
        if wait == 0:
            del self.row[request]
            self.sent[request] = (self.now, tokens)
        else:
            self.row[request] = (tokens, self.now + again + GRACE_MS)
        return wait

    def _cost(self, tokens: int) -> int:
        return min(tokens, self.tokens) if self.tokens else tokens

    def _ramp(self, planned: list[tuple[int, int]]) -> int:
        since = sum(at >= self.cut_until for at, _ in planned)
        return math.ceil(self.cut_until + DOUBLING_MS * math.log(since + 1) / math.log(2))

    def _fits(self, planned: list[tuple[int, int]], moment: int, cost: int) -> bool:
        if self.cut_until and moment < self._ramp(planned):
            return False
        inside = [self._cost(tokens) for at, tokens in planned if moment - at < WINDOW_MS]
        has_room = not self.requests or len(inside) < self.requests
        return has_room and (not self.tokens or sum(inside) + cost <= self.tokens)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "again", "again", "settle", "cut", "pass"]),
        st.integers(0, 30),
        st.sampled_from([0, 1, 500, 2_000, 4_000, 9_000]),
    ),
    max_size=40,
)
AFTER_A_CUT = [("ask", 0, 0), ("cut", 0, 0), ("ask", 0, 0), ("ask", 0, 0), ("ask", 0, 0)]


MORE_USED_THAN_ASKED = [
    ("ask", 0, 0),
    ("ask", 1, 0),
    ("ask", 0, 0),
    ("settle", 7, 0),
    ("ask", 1, 0),
]
"""By a request of the release before, after a look of this one."""
READY = [("ask", 1, 0), ("ask", 1, 0), ("ask", 1, 0), ("settle", 0, 0), ("ask", 0, 0)]
"""The third one waits, and has room since the first one used nothing; it has not asked again."""
NO_LONGER_READY = [*READY, ("settle", 3, 0), ("again", 0, 0)]
CUT_WHILE_READY = [*READY, ("cut", 0, 0), ("again", 0, 0), ("again", 1, 0)]


@cache
def earlier_scripts() -> dict[str, str]:
    folder, release = "orchestrator/jobs/store/scripts", listed_releases()[-1]
    common = earlier_file(release, f"{folder}/common.lua")
    return {
        name: common + earlier_file(release, f"{folder}/{name}.lua")
        for name in ("model_turn", "model_settle", "model_cut")
    }


class EarlierLimiter(RedisRateLimiter):
    """The limiter of a process of the release before: what it sends to Redis is the same."""

    def __init__(self, redis: FakeAsyncRedis, rate: ModelRate) -> None:
        super().__init__(redis, Keys(), {"m": rate}, window_seconds=WINDOW_MS / 1000)
        scripts = Scripts(redis, Keys(), ())
        scripts.registered = {
            name: redis.register_script(text) for name, text in earlier_scripts().items()
        }
        self._run = scripts.run


def limiters(redis: FakeAsyncRedis, rate: ModelRate, *, is_mixed: bool) -> list[RedisRateLimiter]:
    """The processes that ask in turn, of one or of two releases."""
    this = RedisRateLimiter(redis, Keys(), {"m": rate}, window_seconds=WINDOW_MS / 1000)
    return [this, EarlierLimiter(redis, rate) if is_mixed else this]


@example(requests=0, tokens=0, is_mixed=False, steps=AFTER_A_CUT)
@example(requests=0, tokens=100, is_mixed=True, steps=MORE_USED_THAN_ASKED)
@example(requests=0, tokens=100, is_mixed=False, steps=NO_LONGER_READY)
@example(requests=0, tokens=100, is_mixed=False, steps=CUT_WHILE_READY)
@given(
    requests=st.sampled_from([0, 1, 3]),
    tokens=st.sampled_from([0, 100]),
    is_mixed=st.booleans(),
    steps=STEPS,
)
@settings(max_examples=80, deadline=None)
def test_turns_are_given_as_plain_python_gives_them(
    requests: int, tokens: int, *, is_mixed: bool, steps: list[tuple[str, int, int]]
) -> None:
    asyncio.run(_play(requests, tokens, steps, is_mixed=is_mixed))


async def _play(
    requests: int, tokens: int, steps: list[tuple[str, int, int]], *, is_mixed: bool
) -> None:
    reference = Reference(requests, tokens, now=int(time.time() + 3600) * 1000)
    rate = ModelRate(requests_per_minute=requests or None, tokens_per_minute=tokens or None)
    with mock.patch.object(server_mixin, "time", reference):
        async with FakeAsyncRedis(decode_responses=True) as redis:
            processes = limiters(redis, rate, is_mixed=is_mixed)
            known: dict[str, int] = {}
            for number, (step, which, milliseconds) in enumerate(steps):
                reference.now += milliseconds
                if step == "ask" or not known:
                    name, wanted = f"r{number:02}", TOKENS[which % 3]
                else:
                    name, wanted = list(known.items())[which % len(known)]
                limits = processes[int(name[1:]) % 2]
                if step in {"ask", "again"}:
                    known[name] = wanted
                    again, wait, _ = await limits._turn(name, "m", wanted)
                    expected = reference.ask(name, wanted, round(again * 1000))
                    assert (wait == 0) == (expected == 0)
                    assert again <= wait
                    if not tokens and not reference.cut_until:
                        assert round(wait * 1000) == expected
                elif step == "settle":
                    used = wanted * (which % 4)
                    await limits.settle(name, "m", wanted, used)
                    if name in reference.sent:
                        reference.sent[name] = (reference.sent[name][0], used)
                        known.pop(name)
                elif step == "cut" and name in reference.sent:
                    await limits.cut(name, "m", wanted, 3.0)
                    reference.sent[name] = (reference.sent[name][0], 0)
                    reference.cut_until = max(reference.cut_until, reference.now + 3_000)
                    known.pop(name)


@dataclass
class Load:
    """Requests that wait for a model, each in a process that asks when it was told to."""

    now: int = 1_800_000_000_000
    looks: Counter[str] = field(default_factory=Counter)
    begun: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Request -> when it got its turn."""

    def time(self) -> float:
        return self.now / 1000

    async def run(
        self, processes: list[RedisRateLimiter], wanted: dict[str, int], dead: set[str]
    ) -> None:
        """Let all ask at once until each has its turn; the dead ones ask once."""
        asking = [(self.now, number, name) for number, name in enumerate(wanted)]
        self.begun = dict.fromkeys(wanted, self.now)
        while asking:
            self.now, number, name = heappop(asking)
            self.looks[name] += 1
            again, *_ = await processes[number % len(processes)]._turn(name, "m", wanted[name])
            if not again:
                self.sent[name] = self.now
            elif name not in dead:
                heappush(asking, (self.now + round(again * 1000), number, name))

    def most_in_a_window(self, counted: Callable[[str], int]) -> int:
        return max(
            sum(counted(name) for name, at in self.sent.items() if 0 <= at - begin < WINDOW_MS)
            for begin in self.sent.values()
        )


@pytest.mark.parametrize("is_mixed", [False, True], ids=["one release", "two releases"])
async def test_a_long_queue_is_sent_at_its_rate_and_asks_seldom(*, is_mixed: bool) -> None:
    load, rate = Load(), ModelRate(requests_per_minute=6, tokens_per_minute=150)
    wanted = {f"r{number:04}": 1 + number * 31 % 49 for number in range(40)}
    dead = set(list(wanted)[::7])
    with mock.patch.object(server_mixin, "time", load):
        async with FakeAsyncRedis(decode_responses=True) as redis:
            await load.run(limiters(redis, rate, is_mixed=is_mixed), wanted, dead)

    assert wanted.keys() - load.sent.keys() <= dead
    assert load.most_in_a_window(lambda _: 1) <= 6
    assert load.most_in_a_window(lambda name: wanted[name]) <= 150
    windows = math.ceil(sum(wanted[name] for name in load.sent) / 150) + math.ceil(len(dead) / 6)
    assert max(load.sent.values()) - load.begun["r0000"] <= 1.25 * windows * WINDOW_MS
    for name, sent_at in load.sent.items():
        waited = sent_at - load.begun[name]
        assert load.looks[name] <= SOON_LOOKS + waited / LATEST_MS
