"""What one scrape of `/metrics` asks of a real Redis."""

from __future__ import annotations

import pytest

from fanout.orchestrator.client import job_counts
from fanout.orchestrator.client.job_counts import JobCounts
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.store import records
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.builders import make_spec

pytestmark = pytest.mark.redis


async def test_a_scrape_reads_no_more_of_many_jobs_than_of_few(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "COUNTED_AT_ONCE", 5)
    monkeypatch.setattr(job_counts, "FRESH_SECONDS", -1.0)
    scrapes = []
    async with connect(redis_url) as redis, JobReader(redis_url) as reader:
        ledger, counts = Ledger(redis, Keys()), JobCounts(reader)
        for number in (10, 1000):
            ids = await ledger.submit([make_spec("a job") for _ in range(number)])
            for job_id in ids:
                await ledger.cancel(job_id)
            await counts.now()
            before = await redis.info("stats")
            found = await counts.now()
            after = await redis.info("stats")
            scrapes.append(after["total_net_output_bytes"] - before["total_net_output_bytes"])

    assert found.states["cancelled"] == 1010
    assert scrapes[1] <= scrapes[0] + 1000
