"""Limits per minute on a real Redis, with minutes of a few seconds.

Many gates, in several processes.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.spec import ModelRate
from fanout.orchestrator.jobs.store import rate_limiter
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.lua_scripts import script_source
from fanout.orchestrator.jobs.store.rate_limiter import (
    ASK_GRACE_SECONDS,
    ASK_SPREAD_SECONDS,
    DOUBLING_SECONDS,
    LATE_SECONDS,
    LATEST_ASK_SECONDS,
    RedisRateLimiter,
)
from tests.faults.releases import THIS_RELEASE, Release, earlier_release, listed_releases
from tests.integration.jobs.proxy import lossy
from tests.services import REPOSITORY, RedisProcess
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WINDOW_SECONDS = 6.0
COUNTED_SECONDS = WINDOW_SECONDS / 2
"""What is counted over: on a busy machine requests are late by the rest."""


@pytest.fixture
async def real_redis(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url) as made:
        yield made


def gate(redis: Redis, **rate: int) -> RedisRateLimiter:
    return RedisRateLimiter(redis, Keys(), {"m": ModelRate(**rate)}, window_seconds=WINDOW_SECONDS)


def most_in_any_window(times: list[float], seconds: float) -> int:
    return max(sum(begin <= at < begin + seconds for at in times) for begin in times)


async def sends(limits: RedisRateLimiter, names: list[str], tokens: int = 10) -> list[float]:
    """All at once; when each got its turn."""

    async def send(name: str) -> float:
        await limits.enter(name, "m", tokens)
        return time.time()

    return list(await asyncio.gather(*map(send, names)))


SENDER = """
import asyncio, sys, time
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store import rate_limiter
# The second name is that of the earlier release, which runs this program too.
RedisRateLimiter = getattr(rate_limiter, "RedisRateLimiter", None) or rate_limiter.RateLimiter
from fanout.orchestrator.jobs.spec import ModelRate

async def main(url, who, window):
    async with connect(url) as redis:
        rate = ModelRate(requests_per_minute=4)
        limits = RedisRateLimiter(redis, Keys(), {"m": rate}, window_seconds=float(window))
        await redis.ping()
        print("ready", flush=True)
        sys.stdin.readline()
        async def send(number):
            await limits.enter(f"{who}{number}", "m", 10)
            print(time.time(), flush=True)
        await asyncio.gather(*map(send, range(5)))

asyncio.run(main(*sys.argv[1:]))
"""


COUNTING = """
local real, read = redis, 0
local redis = {call = function(...)
  local found = real.call(...)
  read = read + (type(found) == 'table' and #found or 1)
  real.call('SET', 'read', read)
  return found
end}
"""
"""Before a script: it notes under `read` how many values it has got from Redis."""


def begun(redis_url: str, who: str, release: Release) -> subprocess.Popen[str]:
    """A process with five requests, which wait for a word."""
    command = [sys.executable, "-c", SENDER, redis_url, who, str(WINDOW_SECONDS)]
    pipe, environment = subprocess.PIPE, os.environ | release.environment
    return subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdin=pipe, stdout=pipe, text=True
    )


def start_together(senders: Sequence[subprocess.Popen[str]]) -> None:
    for sender in senders:
        assert sender.stdout
        assert sender.stdout.readline() == "ready\n"
    for sender in senders:
        assert sender.stdin
        sender.stdin.write("\n")
        sender.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [False, True], ids=["one release", "two releases"])
async def test_processes_together_keep_to_the_limit_and_a_dead_one_holds_nobody_up(
    real_redis: Redis, redis_url: str, tmp_path: Path, *, is_mixed: bool
) -> None:
    other = earlier_release(listed_releases()[-1], tmp_path) if is_mixed else THIS_RELEASE
    releases = {"a": THIS_RELEASE, "b": other, "c": THIS_RELEASE}
    senders = [begun(redis_url, who, release) for who, release in releases.items()]
    await asyncio.to_thread(start_together, senders)
    waiting = await eventually(
        lambda: real_redis.zrange(f"{Keys().prefix}:model-waiting:m", 0, -1),
        lambda waiting: len(waiting) >= 8,
    )
    victim = str(waiting[0])[0]  # whose turn is next
    senders["abc".index(victim)].kill()
    told = [await asyncio.to_thread(sender.communicate, timeout=60) for sender in senders]
    times = sorted(float(line) for out, _ in told for line in out.split())

    assert [sender.returncode for sender in senders].count(0) == 2
    assert 10 <= len(times) < 15
    assert most_in_any_window(times, COUNTED_SECONDS) <= 4
    found = [
        await real_redis.pttl(key) async for key in real_redis.scan_iter(f"{Keys().prefix}:model*")
    ]
    most = WINDOW_SECONDS + LATEST_ASK_SECONDS + ASK_GRACE_SECONDS
    assert found
    assert all(0 < milliseconds <= most * 1000 for milliseconds in found), "nothing stays for ever"


@pytest.mark.slow
async def test_tokens_are_set_aside_and_given_back_when_less_was_used(real_redis: Redis) -> None:
    limits = gate(real_redis, tokens_per_minute=1000)
    begun = time.time()
    first = await sends(limits, ["a", "b"], 400)
    waiting = asyncio.create_task(sends(limits, ["c"], 400))
    await eventually(lambda: real_redis.zcard(f"{Keys().prefix}:model-waiting:m"))
    assert not waiting.done()

    await limits.settle("a", "m", 400, 100)
    await limits.settle("a", "m", 400, 100)

    third = await waiting
    assert max(first) - begun < WINDOW_SECONDS
    assert third[0] - max(first) < WINDOW_SECONDS - 0.5, (
        "it heard of the settlement, not of the window's end"
    )
    (alone,) = await sends(limits, ["larger than the whole budget"], 5000)
    assert alone - third[0] > WINDOW_SECONDS - 0.1
    used = await real_redis.zrange(f"{Keys().prefix}:model-sent:m", 0, -1)
    assert used == ["larger than the whole budget 5000"]


@pytest.mark.slow
async def test_one_that_was_refused_holds_all_back_and_the_rate_returns_step_by_step(
    real_redis: Redis,
) -> None:
    ours, theirs = gate(real_redis), gate(real_redis)
    told: list[str] = []

    async def tell(why: str) -> None:
        told.append(why)

    await sends(ours, ["a", "b"])
    assert await ours.cut("a", "m", 10, 1.0) == pytest.approx(1, abs=0.1)
    cut_at = time.time()
    waiting = asyncio.create_task(theirs.enter("c", "m", 10, on_wait=tell))
    await eventually(lambda: told)
    assert await theirs.cut("b", "m", 10, 1.5) == pytest.approx(1.5, abs=0.1)
    assert (
        told == ["waits a moment for m: its service has asked for a pause"]
        or "about 1 s" in told[0]
    )
    later = await sends(theirs, ["d", "e", "f"])
    await waiting

    ends_at = cut_at + 1.7
    for number, at in enumerate(sorted(later), start=1):
        assert at - ends_at > DOUBLING_SECONDS * math.log2(number + 1) - 0.2
    assert len(told) == 1


@pytest.mark.slow
async def test_the_pause_grows_with_each_new_refusal_and_an_answer_ends_that(
    real_redis: Redis,
) -> None:
    limits = gate(real_redis)
    await sends(limits, ["a", "b"])
    pauses = [await limits.cut(name, "m", 10, None) for name in ("a", "b", "a")]
    await sends(limits, ["c"])
    pauses.append(await limits.cut("c", "m", 10, None))
    await sends(limits, ["d"])
    await limits.settle("d", "m", 10, 10)
    await sends(limits, ["e"])
    pauses.append(await limits.cut("e", "m", 10, None))

    assert [round(pause) for pause in pauses] == [1, 1, 1, 2, 1]


async def test_a_pause_of_more_than_a_minute_is_left_to_the_state_of_the_model(
    real_redis: Redis,
) -> None:
    limits = gate(real_redis)
    await sends(limits, ["a", "b"])

    assert await limits.cut("a", "m", 10, 1_800) == pytest.approx(60, abs=1)
    assert await limits.cut("b", "m", 10, 20) == pytest.approx(60, abs=1)


async def test_a_look_reads_no_more_of_a_long_queue_than_of_a_short_one(real_redis: Redis) -> None:
    rate = {"requests_per_minute": 4, "tokens_per_minute": 100}
    limits = RedisRateLimiter(real_redis, Keys(), {"m": ModelRate(**rate)})
    counting = real_redis.register_script(COUNTING + script_source("model_turn"))
    limits._run.__self__.registered["model_turn"] = counting
    read: dict[int, int] = {}
    for number in range(1001):
        again, *_ = await limits._turn(f"r{number}", "m", 10)
        if number in {100, 1000}:
            await limits._turn(f"r{number // 2}", "m", 10)
            read[number] = int(await real_redis.get("read"))

    assert read[1000] <= read[100] + 5
    assert again == LATEST_ASK_SECONDS


async def test_those_at_the_end_of_a_very_long_queue_ask_less_often(real_redis: Redis) -> None:
    limits = RedisRateLimiter(real_redis, Keys(), {"m": ModelRate(requests_per_minute=100)})
    await sends(limits, [f"sent{number}" for number in range(100)])
    await limits._turn("first", "m", 10)
    waiting = {f"r{number} 10": number + 2 for number in range(20_000)}
    await real_redis.zadd(f"{Keys().prefix}:model-waiting:m", waiting)

    far, *_ = await limits._turn("r19999", "m", 10)
    near, *_ = await limits._turn("r0", "m", 10)

    assert far == pytest.approx(20_000 * ASK_SPREAD_SECONDS, abs=0.1)
    assert near < far / 2


async def test_an_answer_that_gets_lost_is_no_second_request(
    redis_server: RedisProcess, redis_url: str
) -> None:
    assert redis_url
    async with lossy(redis_server.port) as proxy, connect(proxy.url) as redis:
        limits = gate(redis, requests_per_minute=2)
        for name in ("a", "b"):
            proxy.lose_answer_to = f"\r\n{name}\r\n".encode()
            await limits.enter(name, "m", 10)
        assert proxy.lost == 2
        assert await redis.zcard(f"{Keys().prefix}:model-sent:m") == 2


async def test_a_turn_that_comes_too_late_to_be_used_is_taken_again(real_redis: Redis) -> None:
    limits, turns = gate(real_redis), 0

    async def slow_once() -> None:
        nonlocal turns
        turns += 1
        # It is slow itself: nothing waits for it.
        await asyncio.sleep(1.5 * LATE_SECONDS if turns == 1 else 0)

    begun = time.time()
    await limits.enter("a", "m", 10, on_turn=slow_once)

    assert turns == 2
    at = await real_redis.zscore(f"{Keys().prefix}:model-sent:m", "a 10")
    assert at is not None
    assert at / 1000 - begun > LATE_SECONDS


async def test_a_gate_without_redis_waits_for_it_and_then_says_so(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisProcess(tmp_path_factory.mktemp("away"))
    await asyncio.to_thread(server.start)
    async with connect(server.url) as redis:
        limits = gate(redis)
        await limits.enter("a", "m", 10)
        server.kill()
        asking = asyncio.create_task(limits.enter("b", "m", 10))
        await limits.settle("a", "m", 10, 5)
        assert await limits.cut("a", "m", 10, None) == 0
        await asyncio.sleep(0.4)  # long enough to fail, had it not waited
        assert not asking.done()
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(asking, 60)
        server.kill()
        monkeypatch.setattr(rate_limiter, "through_outage", lambda ask: ask())
        with pytest.raises(LedgerUnavailable):
            await limits.enter("c", "m", 10)
