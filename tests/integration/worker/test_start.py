"""A worker that registers, and cannot load what runs its jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.builders import make_spec
from tests.forked import REPOSITORY
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_worker_without_its_libraries_ends_and_its_job_goes_on_elsewhere(
    place: Installation, tmp_path: Path
) -> None:
    (tmp_path / "toon_format.py").write_text("raise ImportError('It is broken.')\n")
    async with place.client() as client:
        job_id = await client.submit(make_spec("quick"))
        broken = place.start_worker(forked=False, PYTHONPATH=f"{REPOSITORY}:{tmp_path}")

        assert broken.process is not None
        assert await asyncio.to_thread(broken.process.wait, 60) == 1
        assert "cannot be loaded" in await asyncio.to_thread(broken.tail)
        assert await client.workers() == []

        place.start_worker()
        assert (await client.wait(job_id)).success
