"""The Redis client behaves where asyncio's own habits would lose something."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fanout.orchestrator.jobs.store.connection import connect

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
    with redis.Redis(unix_socket_path=str(path)) as probe:
        for _ in range(100):
            try:
                probe.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
    yield f"unix://{path}"
    server.terminate()
    server.wait()
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_cancel_is_never_lost_whenever_it_comes(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("redis_url" if kind == "tcp" else "unix_url")
    async with connect(url) as client:

        async def count_for_ever() -> None:
            while True:
                await client.incr("counter")

        for turns in range(60):
            counting = asyncio.create_task(count_for_ever())
            for _ in range(turns):
                await asyncio.sleep(0)
            counting.cancel()
            done, _ = await asyncio.wait({counting}, timeout=2)
            assert done, f"the cancel after {turns} turns of the loop was lost"
        value = int(await client.get("counter") or 0)
        assert await client.incr("counter") == value + 1, "answers went to other questions"
