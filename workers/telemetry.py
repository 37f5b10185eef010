"""A worker's traces and metrics, and those of ADK, sent to an OpenTelemetry collector."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from fanout.orchestrator.tracing.collectors import choose_exporter, has_exporter

if TYPE_CHECKING:
    from google.adk.telemetry import TelemetryConfig
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

METRICS_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
METRICS_EXPORTER = "OTEL_METRICS_EXPORTER"
SERVICE = "fanout-worker"
_ADK = "gcp.vertex.agent"
"""The name of ADK's instrumentation."""
_STRUCTURE = frozenset({"invocation", "invoke_workflow", "invoke_agent", "invoke_node"})
"""The first words of ADK's spans that stand for the whole attempt. Nobody could report them when
their worker is killed, and the spans below them that were sent would have no parent."""
_MERGED = "execute_tool (merged)"
"""ADK's second report of tools that ran at once."""


@cache
def is_exported() -> bool:
    """Return whether this process exports spans."""
    return choose_exporter(os.environ) is not None and has_exporter()


def is_sampled(trace_id: str) -> bool:
    """Return whether a trace that begins with this id is recorded."""
    if not is_exported():
        return True
    from fanout.orchestrator.tracing import export  # noqa: PLC0415 - takes tenths of a second

    return export.is_sampled(trace_id)


def flush_spans() -> None:
    """Send the spans that have ended without waiting for more; returns at once."""
    if is_exported():
        from fanout.orchestrator.tracing import export  # noqa: PLC0415 - it is loaded

        export.flush_in_background()


@cache
def run_telemetry() -> TelemetryConfig:
    """Return what runs of agents record.

    Without a collector it is the least: ADK would otherwise describe the whole conversation at each
    request to a model, for nobody.
    """
    from google.adk.telemetry import TelemetryConfig  # noqa: PLC0415 - not for a worker's start

    return TelemetryConfig(genai_semconv_stability_opt_in=None if is_exported() else "stable")


def export_telemetry() -> None:
    """Send traces and metrics, if OpenTelemetry's variables name a collector."""
    if choose_exporter(os.environ) is not None:
        from fanout.orchestrator.tracing import export  # noqa: PLC0415 - takes tenths of a second

        export.start(SERVICE, _for_libraries)
    _export_metrics()


def end_telemetry() -> None:
    """Send what is left; a collector that hangs delays this by two seconds at most."""
    if is_exported():
        from fanout.orchestrator.tracing import export  # noqa: PLC0415 - it is loaded

        export.stop()


def _export_metrics() -> None:
    """Send ADK's metrics of agents, models and tools."""
    named = os.environ.get(METRICS_EXPORTER, "").strip().lower()
    is_wanted = named == "otlp" or (
        not named and any(os.environ.get(name) for name in METRICS_ENDPOINTS)
    )
    if not is_wanted or not is_exported():
        return
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415 - of an extra
        OTLPMetricExporter,
    )
    from opentelemetry.metrics import set_meter_provider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - as above
        PeriodicExportingMetricReader,
    )

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    # Its shutdown would wait for a collector that hangs.
    set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))


def _for_libraries(provider: SdkTracerProvider) -> TracerProvider:
    """Return a provider that leaves out ADK's spans of whole attempts, and those outside of one."""
    from opentelemetry import trace  # noqa: PLC0415 - it is loaded

    class StepsOnly(trace.Tracer):
        """ADK's tracer: models and tools are spans below the attempt's."""

        def __init__(self, tracer: Tracer) -> None:
            self._tracer = tracer

        def start_span(
            self, name: str, context: Context | None = None, *args: Any, **options: Any
        ) -> Span:
            """Start a span, or return a stand-in for the one that is open."""
            above = trace.get_current_span(context).get_span_context()
            if not above.is_valid or name == _MERGED or name.partition(" ")[0] in _STRUCTURE:
                return trace.NonRecordingSpan(above)
            return self._tracer.start_span(name, context, *args, **options)

        @contextlib.contextmanager
        def start_as_current_span(  # type: ignore[override] # the API's decorator has no type
            self,
            name: str,
            context: Context | None = None,
            *args: Any,
            end_on_exit: bool = True,
            **options: Any,
        ) -> Iterator[Span]:
            """Start a span, and make it the one that is open."""
            span = self.start_span(name, context, *args, **options)
            with trace.use_span(span, end_on_exit=end_on_exit) as opened:
                yield opened

    class Libraries(trace.TracerProvider):
        """The provider that libraries see."""

        def get_tracer(self, instrumenting_module_name: str, *args: Any, **options: Any) -> Tracer:
            """Return a library's tracer."""
            tracer = provider.get_tracer(instrumenting_module_name, *args, **options)
            return StepsOnly(tracer) if instrumenting_module_name == _ADK else tracer

    return Libraries()
