"""What our processes send to a collector; each in a process of its own: it is set once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY
from tests.integration.scripts import conversation, says, write_script
from tests.otlp_receiver import otlp_receiver

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AGENT = """
import asyncio, sys
from fanout import create_deep_agent
from fanout.orchestrator.tracing import export
from fanout.orchestrator.tracing.spans import span
from fanout.workers.telemetry import end_telemetry, export_telemetry
from google.adk.runners import InMemoryRunner

async def main():
    export_telemetry()
    agent = create_deep_agent("scripted:" + sys.argv[1], name="clerk")
    runner = InMemoryRunner(agent=agent, app_name="office")
    with span("attempt"):
        await runner.run_debug("a secret goal", quiet=True)

asyncio.run(main())
export.SHUTDOWN_SECONDS = 60  # on a busy machine the spans need their time
end_telemetry()
"""
SUBMITS_NOTHING = """
import threading
from fanout.orchestrator.tracing import export
from fanout.orchestrator.tracing.spans import span

export.start("fanout")
for _ in range(10_000):
    with span("step"):
        pass
    export.flush_in_background()
assert threading.active_count() < 20, threading.enumerate()
export.stop()
print("ended")
"""
LOST = """
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.timeline import Phase
from fanout.orchestrator.tracing import export
from fanout.workers.attempt.traced import record_lost_attempt
from fanout.workers.telemetry import end_telemetry, export_telemetry

export_telemetry()
kinds = ["queued", "running", "waiting", "queued", "running", "queued", "running"]
phases = tuple(Phase(kind=kind, begin=10 * n, end=10 * n + 10) for n, kind in enumerate(kinds))
record = JobRecord(
    description="x", state=JobState.RUNNING, attempt=3, submitted_at=0, phases=phases
)
record_lost_attempt(record, lost_at=50)
export.SHUTDOWN_SECONDS = 60  # on a busy machine the spans need their time
end_telemetry()
"""
LOGS = """
import os, sys
import structlog
from fanout.orchestrator.configuration.log_setup import set_up_logging
from fanout.orchestrator.jobs.trace_context import read_traceparent
from fanout.orchestrator.tracing.spans import below, span

set_up_logging("info")
with below(read_traceparent(os.environ["TRACEPARENT"])), span("step"):
    structlog.get_logger("test").info("inside")
structlog.get_logger("test").info("outside")
assert "opentelemetry" not in sys.modules
"""

pytestmark = pytest.mark.timeout(300)


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        check=True,
        timeout=150,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_traces_of_agents_reach_the_collector_without_what_was_said(tmp_path: Path) -> None:
    script = write_script(tmp_path, {"agent": "clerk", **conversation("", says("a secret answer"))})
    with otlp_receiver() as collector:
        run(AGENT, str(script), **collector.environment)

    model, attempt = sorted(collector.spans, key=lambda span: span.begin, reverse=True)
    assert model.name.startswith("generate_content scripted:")
    assert (model.parent_id, attempt.parent_id) == (attempt.span_id, "")
    assert model.attributes["gen_ai.operation.name"] == "generate_content"
    assert {span.service for span in collector.spans} == {"fanout-worker"}
    assert b"secret" not in collector.raw


@pytest.mark.slow
def test_the_attempt_of_a_lost_worker_is_reported_although_another_one_runs_the_job_already() -> (
    None
):
    with otlp_receiver() as collector:
        run(LOST, **collector.environment)

    (lost,) = collector.spans
    assert (lost.begin / 1e9, lost.end / 1e9, lost.message) == (40, 50, "WorkerLost")
    assert lost.attributes["fanout.attempt"] == 2
    assert len(lost.links) == 1


@pytest.fixture
def hanging_collector() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_process_ends_in_peace_although_its_collector_hangs(
    hanging_collector: str, protocol: str
) -> None:
    ended = run(
        SUBMITS_NOTHING,
        OTEL_EXPORTER_OTLP_ENDPOINT=hanging_collector,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_TIMEOUT="3600",
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")


@pytest.mark.slow
def test_a_collector_that_is_not_there_is_named_in_one_line() -> None:
    ended = run(SUBMITS_NOTHING, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert ended.stdout == "ended\n"
    assert len(ended.stderr.splitlines()) <= 1
    assert "Traceback" not in ended.stderr


def test_log_lines_have_the_ids_of_the_trace_without_opentelemetry() -> None:
    inside, outside = map(json.loads, run(LOGS, TRACEPARENT=TRACEPARENT).stderr.splitlines())
    _, trace_id, span_id, _ = TRACEPARENT.split("-")
    assert (inside["trace_id"], inside["span_id"]) == (trace_id, span_id)
    assert "trace_id" not in outside
