"""Many jobs of one worker that are cancelled at once all report what they have changed."""

from __future__ import annotations

import asyncio

import pytest

from tests.benchmarks.stopped_at_once import SCRIPT, cancelled_at_once
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


async def test_none_loses_its_changes(install: Installer, provider: str) -> None:
    jobs = {"local": 50, "docker": 16}[provider]
    place = await asyncio.to_thread(install, SCRIPT, FANOUT_SANDBOX__PROVIDER=provider)
    await asyncio.to_thread(place.start_worker, jobs)
    async with place.client() as client:
        await place.ready(client)

        stopped = await cancelled_at_once(client, jobs)

    assert stopped.complete == jobs
