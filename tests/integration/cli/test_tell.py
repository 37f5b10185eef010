"""`fanout tell`, on a real Redis, without a worker."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.redis


def test_a_job_that_has_not_ended_is_told_something_and_another_is_not(fanout):
    job_id = fanout("submit", "Tidy the attic").out.strip()
    told = fanout("tell", job_id[:20], "and the cellar", "--json")
    assert told.code == 0, told.err
    assert told.json == {"id": job_id, "job_id": job_id}
    assert "and the cellar" in fanout("logs", job_id).out

    fanout("cancel", job_id)
    refused = fanout("tell", job_id, "too late")
    assert refused.code != 0
    assert "has ended (cancelled): it takes no messages" in refused.err
