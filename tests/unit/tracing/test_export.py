"""What leaves a process as a span, in which order, and what stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode, set_span_in_context

from fanout.orchestrator.tracing.collectors import choose_exporter
from fanout.orchestrator.tracing.export import (
    MAX_NAME_CHARACTERS,
    STEP_OF_ITS_OWN,
    CleaningExporter,
    StepProcessor,
)
from fanout.workers.attempt.traced import ClaimTimes

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


class Kept(SpanExporter):
    """Keeps what it is to send."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.fails:
            raise ConnectionError("the key is sk-SECRET123")
        self.spans += spans
        return SpanExportResult.SUCCESS

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def tracer_provider(kept: Kept) -> Any:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(StepProcessor(CleaningExporter(kept, has_contents=False)))
    yield made
    made.shutdown()


def test_spans_below_a_step_leave_with_it_and_those_of_an_attempt_at_once(
    tracer_provider: TracerProvider, kept: Kept
) -> None:
    tracer = tracer_provider.get_tracer("fanout")
    attempt = tracer.start_span("attempt", attributes={STEP_OF_ITS_OWN: 1})
    tool = tracer.start_span("tool", set_span_in_context(attempt))
    tracer.start_span("command", set_span_in_context(tool)).end()
    tracer.start_span("model", set_span_in_context(attempt)).end()
    tracer_provider.force_flush()
    assert kept.names == ["model"]

    tool.end()
    tracer_provider.force_flush()
    assert kept.names == ["model", "tool", "command"]

    late = tracer.start_span("late", set_span_in_context(tool))
    late.end()
    attempt.end()
    tracer_provider.force_flush()
    assert kept.names[3:] == ["late", "attempt"]


def test_texts_of_libraries_and_contents_are_in_no_span(
    tracer_provider: TracerProvider, kept: Kept
) -> None:
    span = tracer_provider.get_tracer("gcp.vertex.agent").start_span("execute_tool " + "x" * 1000)
    span.set_attribute("gen_ai.tool.call.arguments", "secret")
    span.set_attribute("gen_ai.input.messages", "secret")
    span.set_attribute("gcp.vertex.agent.llm_request", "secret")
    span.set_attribute("gen_ai.tool.name", "shell")
    span.record_exception(ValueError("secret"))
    span.set_status(StatusCode.ERROR, "ValueError: secret")
    span.end()
    tracer_provider.force_flush()

    [sent] = kept.spans
    assert len(sent.name) == MAX_NAME_CHARACTERS
    assert dict(sent.attributes or {}) == {"gen_ai.tool.name": "shell"}
    assert "secret" not in sent.to_json()
    assert sent.status.status_code is StatusCode.ERROR


def test_a_collector_that_fails_is_named_once_and_disturbs_nobody(
    tracer_provider: TracerProvider, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = tracer_provider.get_tracer("fanout")
    kept.fails = True
    for _ in range(3):
        tracer.start_span("lost").end()
        tracer_provider.force_flush()
    kept.fails = False
    tracer.start_span("sent").end()
    tracer_provider.force_flush()

    assert kept.names == ["sent"]
    assert caplog.messages == ["traces are not exported: ConnectionError"]


@pytest.mark.parametrize(
    ("environment", "exporter"),
    [
        ({}, None),
        (ENDPOINT, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, "http/protobuf"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "grpc"),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, None),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None),
    ],
)
def test_the_standard_variables_say_whether_and_how_spans_are_sent(
    environment: dict[str, str], exporter: str | None
) -> None:
    assert choose_exporter(environment) == exporter


@pytest.mark.parametrize(
    "sent_at", [None, "", "soon", "nan", "inf", "-1", "1e30", [], "1000000001.0"]
)
def test_a_message_that_lies_about_when_it_was_sent_is_not_believed(sent_at: object) -> None:
    assert ClaimTimes.of(sent_at, 1e9, 1e9 + 1).sent_at is None
    assert ClaimTimes.of("999999999.5", 1e9, 1e9 + 1).sent_at == 999999999.5
