"""The Redis client behaves where asyncio's own habits would lose something."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from fanout.orchestrator.jobs.store.connection import MAX_BATCH, connect
from tests.waits import eventually_in_thread

pytestmark = pytest.mark.redis


@pytest.fixture
def unix_url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="fanout-"))  # a socket's path must be short
    path = folder / "redis.sock"
    server = subprocess.Popen(
        [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--dir",
            str(folder),
            "--save",
            "",
        ],
        stdout=subprocess.DEVNULL,
    )
    eventually_in_thread(path.exists)
    yield f"unix://{path}"
    server.terminate()
    server.wait()
    shutil.rmtree(folder)


async def echo(client: Redis, text: str) -> str:
    return await client.echo(text)


async def echo_in_a_pipeline(client: Redis, text: str) -> str:
    async with client.pipeline(transaction=False) as pipe:
        pipe.echo(text)
        (answer,) = await pipe.execute()
    return answer


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("ask", [echo, echo_in_a_pipeline])
async def test_a_cancel_is_never_lost_whenever_it_comes(
    kind: str, ask: Callable[[Redis, str], Awaitable[str]], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("redis_url" if kind == "tcp" else "unix_url")
    async with connect(url) as client:

        async def ask_for_ever(question: str) -> None:
            while True:
                assert await ask(client, question) == question

        for turns in range(60):
            asking = asyncio.create_task(ask_for_ever(f"after {turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            done, _ = await asyncio.wait({asking}, timeout=2)
            assert done, f"the cancel after {turns} turns of the loop was lost"
            assert asking.cancelled(), "an answer went to another question"


async def test_commands_of_many_callers_at_once_share_a_connection(redis_url: str) -> None:
    async with connect(redis_url) as client, connect(redis_url) as observer:
        before = await _accepted(observer)
        names = [f"caller-{number}" for number in range(MAX_BATCH + 50)]
        await asyncio.gather(*(client.set(name, name) for name in names))
        assert await asyncio.gather(*(client.get(name) for name in names)) == names
        assert await _accepted(observer) - before == 2, "two batches were sent at once"


async def test_an_error_reaches_only_the_caller_whose_command_failed(redis_url: str) -> None:
    async with connect(redis_url) as client:
        await client.set("text", "not a number")
        failed, *others = await asyncio.gather(
            client.incr("text"), client.incr("a"), client.incr("b"), return_exceptions=True
        )
        assert isinstance(failed, redis.ResponseError)
        assert others == [1, 1]


async def test_a_cancelled_caller_takes_nothing_from_the_others(redis_url: str) -> None:
    async with connect(redis_url) as client:
        callers = [asyncio.create_task(client.incr(f"counter-{number}")) for number in range(9)]
        await asyncio.sleep(0)
        callers[3].cancel()
        answers = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(answers.pop(3), asyncio.CancelledError)
        assert answers == [1] * 8
        assert await client.incr("counter-0") == 2


async def test_what_a_cancelled_caller_wanted_is_not_sent_once_a_connection_is_free(
    redis_url: str,
) -> None:
    async with connect(redis_url, max_connections=1) as client, connect(redis_url) as other:
        await client.ping()
        await other.client_pause(2_000)
        first = asyncio.create_task(client.get("anything"))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(client.set("unwanted", 1))
        await asyncio.sleep(0.1)
        second.cancel()
        await other.client_unpause()
        await first
        assert await client.exists("unwanted") == 0


async def test_a_client_that_is_closed_leaves_nobody_waiting(redis_url: str) -> None:
    client = connect(redis_url)
    async with connect(redis_url) as other:
        await client.ping()
        await other.client_pause(5_000)
        callers = [asyncio.create_task(client.get("anything")) for _ in range(3)]
        await asyncio.sleep(0.1)
        await client.aclose()
        answers = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(answer, redis.ConnectionError) for answer in answers)
        await other.client_unpause()


async def _accepted(client: Redis) -> int:
    """Return how many connections the server has accepted."""
    return int((await client.info("stats"))["total_connections_received"])
