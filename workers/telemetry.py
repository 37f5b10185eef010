"""ADK's traces and metrics of agents, models and tools, sent to an OpenTelemetry collector."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from google.adk.telemetry import TelemetryConfig

ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
)
"""OpenTelemetry's own variables: where to send what; its other variables work, too."""
CONTENT = "ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"
"""ADK's variable. Prompts and results are in traces only where a person sets it to `true`."""

log = structlog.get_logger(__name__)


def is_exported() -> bool:
    """Return whether a collector is named."""
    return any(os.environ.get(name) for name in ENDPOINTS)


@cache
def run_telemetry() -> TelemetryConfig:
    """Return what runs of agents record.

    Without a collector it is the least: ADK would otherwise describe the whole conversation at each
    request to a model, for nobody.
    """
    from google.adk.telemetry import TelemetryConfig  # noqa: PLC0415 - not for a worker's start

    return TelemetryConfig(genai_semconv_stability_opt_in=None if is_exported() else "stable")


def export_telemetry() -> None:
    """Send traces and metrics if one of `ENDPOINTS` is set and the extra `otel` is installed."""
    if not is_exported():
        return
    if find_spec("opentelemetry.exporter") is None:
        log.warning("no telemetry", install="pip install 'fanout-orchestrator[otel]'")
        return
    os.environ.setdefault(CONTENT, "false")
    os.environ.setdefault("OTEL_SERVICE_NAME", "fanout-worker")
    from google.adk.telemetry.setup import maybe_set_otel_providers  # noqa: PLC0415 - takes tenths of a second

    maybe_set_otel_providers()
