"""What Prometheus reads of the installation and of a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fanout.orchestrator.client import JobClient
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.forked import run_module
from tests.integration.scripts import DONE, conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation, Installer

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


async def test_the_view_of_fanout_top_has_no_more_than_the_callers_jobs(
    server: ServerProcess,
) -> None:
    place = server.installation
    keys = {name: await make_key(place, name) for name in ("ann", "bob")}
    keys["reader"] = await make_key(place, "reader", "read", owner="*", tenant="*")
    keys["operator"] = await make_key(place, "operator", owner="*", tenant="*")
    for name, jobs in (("ann", 2), ("bob", 1)):
        async with server.client(keys[name]) as client:
            await client.post("/v1/jobs", json=[{"description": f"of {name}"}] * jobs)
    seen = {}
    for name, key in keys.items():
        async with server.client(key) as client:
            seen[name] = (await client.get("/v1/fleet")).json()
    queued = {name: sum(one["jobs"] for one in view["queues"]) for name, view in seen.items()}
    assert queued == {"ann": 2, "bob": 1, "reader": 3, "operator": 3}
    assert seen["operator"]["hosts"] == []
    for name in ("ann", "bob", "reader"):
        hidden = ("hosts", "workers", "slots", "redis_bytes", "tokens_per_minute")
        assert [seen[name][one] for one in hidden] == [None] * len(hidden)
    environment = {**place.environment, "FANOUT_REDIS_URL": "redis://127.0.0.1:1/0"}
    arguments = ("top", "--url", server.url, "--json")
    ended = await asyncio.to_thread(
        run_module, "fanout", *arguments, environment={**environment, "FANOUT_KEY": keys["ann"]}
    )
    assert [one["jobs"] for one in json.loads(ended.stdout)["queues"]] == [2]
    refused = await asyncio.to_thread(
        run_module, "fanout", *arguments, environment={**environment, "FANOUT_KEY": "wrong"}
    )
    assert refused.returncode == 4
    assert "does not accept the key" in refused.stderr


Found = dict[tuple[str, ...], float]


async def scrape(server: ServerProcess, key: str) -> Found:
    """The samples that an operator reads, by name and values of labels."""
    async with server.client(key) as operator:
        answer = await operator.get("/metrics")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


AWAY = {"status": 503, "times": 5, "retry_after_seconds": 0}
FAILS = conversation("^fails", {**DONE, "error": AWAY})
"""Its attempts end after five requests each."""
IS_LIMITED = conversation("^limited", {**DONE, "error": {"status": 429, "retry_after_seconds": 0}})
IS_WRONG = conversation(
    "^wrong", says("It is right.", usage={"input_tokens": 70, "output_tokens": 7})
)


place = place_fixture(FAILS, IS_LIMITED, IS_WRONG, workers=1, FANOUT_SANDBOX__PROVIDER="docker")


@pytest.fixture
def watched(place: Installation) -> Iterator[ServerProcess]:
    process = ServerProcess(place)
    process.start()
    yield process
    process.stop()


@pytest.mark.docker
@pytest.mark.timeout(300)
async def test_each_series_grows_by_what_a_worker_has_done(
    place: Installation, client: JobClient, watched: ServerProcess
) -> None:
    key = await make_key(place, "ann")
    before = await scrape(watched, key)
    specs = [
        make_spec("fails", max_attempts=2),
        make_spec("limited", verify="true"),
        make_spec("wrong", verify="false", max_reworks=0),
    ]
    await client.submit_many([(spec, None) for spec in specs])
    results = [await client.wait(spec.id, 200) for spec in specs]
    assert [one.state for one in results] == ["failed", "succeeded", "failed"], results
    await asyncio.to_thread(place.workers[0].stop)  # it stores what it has counted
    after = await scrape(watched, key)

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0)

    model = str(place.settings.model)[:100]
    assert grown("fanout_attempts_started_total") == 4
    assert grown("fanout_attempts_ended_total", "succeeded") == 1
    assert grown("fanout_attempts_ended_total", "failed") == 2
    assert grown("fanout_attempts_ended_total", "repeated") == 1
    assert grown("fanout_attempt_failures_total", "ModelUnavailable") == 2
    assert grown("fanout_attempt_failures_total", "VerificationFailed") == 1
    assert grown("fanout_leases_lost_total", "lapsed") == 0
    assert grown("fanout_sandbox_start_seconds_count", "opened") >= 2
    assert grown("fanout_sandbox_start_seconds_sum", "opened") > 0
    assert grown("fanout_sandbox_start_seconds_count", "failed") == 0
    assert grown("fanout_verification_seconds_count", "passed") == 1
    assert grown("fanout_verification_seconds_count", "failed") == 1
    assert grown("fanout_model_errors_total", model, "503") == 10
    assert grown("fanout_model_errors_total", model, "429") == 1
    assert grown("fanout_model_calls_total", model) == 10 + 2 + 1
    for kind in ("input", "output"):
        charged = sum(getattr(one.usage, f"{kind}_tokens") for one in results)
        assert grown("fanout_model_tokens_total", kind, model) == charged > 0
    assert grown("fanout_worker_loop_delay_seconds_count") > 0
    assert before["fanout_workers_by_state", "fit"] == 1
    assert before["fanout_worker_slots_free",] == 4
    assert after["fanout_workers_by_state", "fit"] == 0
    assert after["fanout_redis_memory_bytes",] > 0
