"""What `/metrics` shows is bounded; the alerts and the dashboard ask for what it shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from fakeredis import FakeAsyncRedis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fanout.orchestrator.client.fleet_counts import FleetCounter, FleetCounts
from fanout.orchestrator.client.job_counts import Counts, JobCounts
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.fleet import Fleet, QueueHead
from fanout.orchestrator.jobs.store.fleet_totals import MAX_MODELS, FleetTotals
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.memory import redis_memory
from fanout.orchestrator.jobs.totals import (
    ATTEMPTS_STARTED,
    MODEL_REQUESTS,
    OTHER,
    SERIES,
    VERIFICATIONS,
    Label,
    Totals,
)
from fanout.orchestrator.server.connections import ConnectionLimits, Connections
from fanout.orchestrator.server.fleet_metrics import MAX_QUEUES_SHOWN, FleetMetrics
from fanout.orchestrator.server.metrics import Metrics
from fanout.workers.upkeep.counting import Counting
from tests.builders import make_spec, make_worker
from tests.waits import until_reaped

MONITORING = Path(__file__).parents[3] / "config" / "monitoring"
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
METRIC = re.compile(r"\b(?:fanout_\w+|up)\b")
SUFFIXES = ("_bucket", "_count", "_sum")


def shown(counts: FleetCounts) -> dict[tuple[str, ...], float]:
    metrics, registry = FleetMetrics(), CollectorRegistry()
    metrics.counts = counts
    registry.register(metrics)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


async def test_the_totals_of_workers_add_up_and_have_the_form_of_prometheus(
    redis: FakeAsyncRedis,
) -> None:
    stored = FleetTotals(redis, Keys())
    for worker in ("w1", "w2"):
        totals = Totals()
        totals.add(ATTEMPTS_STARTED)
        totals.observe(VERIFICATIONS, 0.5, "passed")
        totals.observe(VERIFICATIONS, 7000, "passed")
        totals.model_failed("m", "429")
        totals.model_failed("m", "418")
        totals.model_failed("m", "no usable reply")
        await Counting(stored, totals, worker).store()
    found = shown(FleetCounts(totals=await stored.read()))
    assert found["fanout_attempts_started_total",] == 2
    assert found["fanout_verification_seconds_bucket", "1.0", "passed"] == 2
    assert found["fanout_verification_seconds_bucket", "+Inf", "passed"] == 4
    assert found["fanout_verification_seconds_sum", "passed"] == 14001
    assert found["fanout_verification_seconds_count", "failed"] == 0
    statuses = {labels[1] for name, *labels in found if name == "fanout_model_errors_total"}
    assert statuses == {"429", "4xx", "none"}


async def test_an_addition_whose_answer_was_lost_counts_once(redis: FakeAsyncRedis) -> None:
    class LosesFirstAnswer(FleetTotals):
        lost = False

        async def add(self, worker: str, request: str, counted: Any) -> None:
            await super().add(worker, request, counted)
            if not self.lost:
                self.lost = True
                raise LedgerUnavailable("lost")

    stored, totals = LosesFirstAnswer(redis, Keys()), Totals()
    counting = Counting(stored, totals, "w1")
    totals.add(ATTEMPTS_STARTED)
    await counting.store()
    totals.add(ATTEMPTS_STARTED)
    await counting.store()
    await counting.store()
    assert (await stored.read())[ATTEMPTS_STARTED.name,] == 2


async def test_models_beyond_a_number_are_counted_as_others(redis: FakeAsyncRedis) -> None:
    stored, totals = FleetTotals(redis, Keys()), Totals()
    for number in range(MAX_MODELS + 7):
        totals.model_asked(f"m{number}")
        totals.model_used(f"m{number}", {"input_tokens": 2})
    await Counting(stored, totals, "w1").store()
    found = await stored.read()
    models = {label[1] for label in found if label[0] == MODEL_REQUESTS.name}
    assert len(models) == MAX_MODELS + 1
    assert found[MODEL_REQUESTS.name, OTHER] == 7
    assert found["fanout_model_tokens", OTHER, "input"] == 14


def test_queues_beyond_a_number_are_shown_as_one() -> None:
    queues = [QueueHead(f"t{n}", "a:1", 2, 1000.0 - n) for n in range(MAX_QUEUES_SHOWN + 9)]
    found = shown(FleetCounts(queues=queues))
    ages = [name for name, *_ in found if name == "fanout_queue_oldest_seconds"]
    assert len(ages) == MAX_QUEUES_SHOWN + 1
    assert found["fanout_queue_jobs", OTHER, OTHER] == 18
    assert found["fanout_queue_oldest_seconds", OTHER, OTHER] == 1000.0 - MAX_QUEUES_SHOWN


async def test_totals_do_not_fall_when_redis_loses_its_last_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.orchestrator.client.job_counts.FRESH_SECONDS", -1.0)
    answers: list[dict[Label, float]] = [{("x",): 10.0}, {("x",): 9.0}, {("x",): 1.0}]
    installations = ["one", "one", "two"]

    class Read:
        async def read(self) -> dict[Label, float]:
            return answers.pop(0)

        async def installation(self) -> str:
            return installations.pop(0)

        async def workers(self) -> list[Any]:
            return []

        queues = workers

    class Reader:
        fleet = totals = Read()

    counter = FleetCounter(cast(JobReader, Reader()))
    seen = [(await counter.now()).totals["x",] for _ in range(3)]
    assert seen == [10.0, 10.0, 1.0]


async def test_the_age_of_a_queue_is_read_of_lanes_also_at_a_limit(redis: FakeAsyncRedis) -> None:
    ledger, fleet = Ledger(redis, Keys()), Fleet(redis, Keys())
    specs = [make_spec("x", tenant="a", agent="tester") for _ in range(30)]
    await ledger.submit(specs)
    await ledger.submit([make_spec("y", tenant="b")])
    first = await redis.hget(Keys().job(specs[0].id), "submitted_at")
    await redis.hset(Keys().job(specs[0].id), "submitted_at", int(str(first)) - 60_000)
    queues = {(one.tenant, one.job_class): one for one in await fleet.queues()}
    assert queues["a", "tester:1"].jobs == 30
    assert queues["a", "tester:1"].oldest_seconds >= 60
    assert queues["b", "general-purpose:1"].jobs == 1
    await redis.sadd(Keys().full_tenants, "a")
    await redis.zrem(Keys().tenants("tester:1"), "a")
    assert ("a", "tester:1") in {(one.tenant, one.job_class) for one in await fleet.queues()}


async def test_a_lease_that_lapses_is_counted_by_whoever_reaps_it(redis: FakeAsyncRedis) -> None:
    ledger, spec, worker = Ledger(redis, Keys()), make_spec("x"), make_worker("w1")
    await ledger.register(worker, 60)
    await ledger.submit([spec])
    await ledger.dispatch(1)
    await ledger.claim(spec.id, worker, 0.001)
    await until_reaped(ledger)
    found = shown(FleetCounts(totals=await FleetTotals(redis, Keys()).read()))
    assert found["fanout_leases_lost_total", "lapsed"] == 1


def families() -> set[str]:
    """The names that `/metrics` can show."""
    limits = ConnectionLimits(
        in_all=1, of_address=1, head_seconds=1, stall_seconds=1, bytes_per_second=1
    )
    reader = JobReader("redis://127.0.0.1:1")
    metrics = Metrics(JobCounts(reader), FleetCounter(reader), Connections(limits))
    metrics._installation.counts = Counts(memory=redis_memory({}))
    found = set()
    for family in metrics._registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found |= {name, *(f"{name}{end}" for end in SUFFIXES if family.type == "histogram")}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


async def test_alerts_and_dashboard_ask_for_series_that_there_are() -> None:
    known = families() | {"up"}
    for where, expression in expressions():
        bare = re.sub(r'"[^"]*"|\{\{.*?\}\}', "", expression)
        names = set(METRIC.findall(bare))
        assert names, where
        assert names <= known, (where, names - known)


async def test_the_dashboard_shows_every_series_of_workers() -> None:
    asked = " ".join(expression for _, expression in expressions())
    assert [name for name in SERIES if name not in asked] == []


def test_every_alert_has_its_lines_in_the_runbook() -> None:
    headings = {
        line[4:].lower() for line in OPERATIONS.read_text().splitlines() if line[:4] == "### "
    }
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/operations.md"
        assert anchor in headings, rule["alert"]


def test_the_alerts_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        assert os.environ.get("CI") != "true", "promtool is not installed (Debian: prometheus)"
        pytest.skip("promtool is not installed")
    for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        ended = subprocess.run(
            [promtool, *command], cwd=MONITORING, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    assert {test["name"] for test in tested} >= {rule["alert"] for rule in rules()}
