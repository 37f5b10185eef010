"""The forecast looks at the queue at intervals, and again when jobs have been taken from it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fanout.workers.upkeep import warm_up
from fanout.workers.upkeep.warm_up import Forecast
from tests.waits import eventually


class Queue:
    """A ledger whose queue is empty, and that counts the looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    async def upcoming(self, _most: int) -> list[Any]:
        self.looks += 1
        return []


async def test_claims_lead_to_one_more_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(warm_up, "SOON_SECONDS", 0.01)
    queue = Queue()
    services: Any = SimpleNamespace(ledger=queue)
    provider: Any = SimpleNamespace(expect_next=lambda _specs: None)
    looking = Forecast(services, provider, cast("Any", None), "image", None)
    running = asyncio.create_task(looking.run())
    await asyncio.sleep(0.05)
    assert queue.looks == 1

    for _ in range(20):
        looking.look_early()
    await eventually(lambda: queue.looks >= 2)
    await asyncio.sleep(0.1)
    assert queue.looks == 2

    running.cancel()
