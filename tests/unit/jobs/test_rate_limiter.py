"""The turns at a model under random interleavings, compared with plain Python."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

from fakeredis import FakeAsyncRedis
from fakeredis.commands_mixins import server_mixin
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.jobs.spec import ModelRate
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.rate_limiter import RateLimiter

WINDOW_MS, LATE_MS, DOUBLING_MS, GRACE_MS = 10_000, 1_000, 2_000, 3_000
SOONEST_MS, LATEST_MS = 2_000, 15_000
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

    def ask(self, request: str, tokens: int) -> int:
        """How long the request has to wait; 0 is its turn."""
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
            again = min(wait, max(SOONEST_MS, min(LATEST_MS, math.ceil(wait / 4))))
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


@example(requests=0, tokens=0, steps=AFTER_A_CUT)
@given(requests=st.sampled_from([0, 1, 3]), tokens=st.sampled_from([0, 100]), steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_turns_are_given_as_plain_python_gives_them(
    requests: int, tokens: int, steps: list[tuple[str, int, int]]
) -> None:
    asyncio.run(_play(requests, tokens, steps))


async def _play(requests: int, tokens: int, steps: list[tuple[str, int, int]]) -> None:
    reference = Reference(requests, tokens, now=int(time.time() + 3600) * 1000)
    clock = SimpleNamespace(time=lambda: reference.now / 1000)
    rate = ModelRate(requests_per_minute=requests or None, tokens_per_minute=tokens or None)
    with mock.patch.object(server_mixin, "time", clock):
        async with FakeAsyncRedis(decode_responses=True) as redis:
            limits = RateLimiter(redis, Keys(), {"m": rate}, window_seconds=WINDOW_MS / 1000)
            known: dict[str, int] = {}
            for number, (step, which, milliseconds) in enumerate(steps):
                reference.now += milliseconds
                if step == "ask" or not known:
                    name, wanted = f"r{number:02}", TOKENS[which % 3]
                else:
                    name, wanted = list(known.items())[which % len(known)]
                if step in {"ask", "again"}:
                    known[name] = wanted
                    again, wait, _ = await limits._turn(name, "m", wanted)
                    assert round(wait * 1000) == reference.ask(name, wanted)
                    assert again <= wait
                elif step == "settle":
                    await limits.settle(name, "m", wanted, wanted // 2)
                    if name in reference.sent:
                        reference.sent[name] = (reference.sent[name][0], wanted // 2)
                        known.pop(name)
                elif step == "cut" and name in reference.sent:
                    await limits.cut(name, "m", wanted, 3.0)
                    reference.sent[name] = (reference.sent[name][0], 0)
                    reference.cut_until = max(reference.cut_until, reference.now + 3_000)
                    known.pop(name)
