"""What Prometheus reads of the installation and of a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.scripts import conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def server(install: Installer) -> Iterator[ServerProcess]:
    process = ServerProcess(install(conversation("", says("done"))))
    process.start()
    yield process
    process.stop()


async def test_operators_read_the_states_of_jobs_and_the_requests(server: ServerProcess) -> None:
    async with server.client(await make_key(server.installation, "ann")) as ann:
        ids = (await ann.post("/v1/jobs", json=[{"description": "a"}] * 3)).json()["job_ids"]
        assert (await ann.post(f"/v1/jobs/{ids[0]}:cancel")).status_code == 202
        assert (await ann.get("/v1/jobs/never")).status_code == 404
        assert (await ann.get("/nothing/here")).status_code == 404
        answer = await ann.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["fanout_jobs", "queued"] == 2
    assert found["fanout_jobs", "cancelled"] == 1
    assert found["fanout_jobs_queued", "no worker"] == 2
    assert found["fanout_workers",] == 0
    assert found["fanout_redis_memory_bytes",] > 0
    assert ("fanout_redis_memory_limit_bytes",) not in found, "there is none"
    assert found["fanout_http_requests_total", "GET", "/v1/jobs/{job_id}", "404"] == 1
    assert found["fanout_http_requests_total", "other", "other", "404"] == 1
    assert found["fanout_http_response_seconds_count", "POST", "/v1/jobs"] == 1
    assert ids[0] not in answer.text
    async with server.client(await make_key(server.installation, "bob", "read")) as bob:
        assert (await bob.get("/metrics")).status_code == 403
