"""Whether spans are exported, and how: read from OpenTelemetry's variables without its packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTERS = "OTEL_TRACES_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"
PARENT = "TRACEPARENT"
"""The variable with which programs pass a trace's context to programs that they start."""
DEFAULT_PROTOCOL = "http/protobuf"


def has_exporter() -> bool:
    """Return whether the packages of the extra `otel` are installed."""
    return (
        find_spec("opentelemetry") is not None and find_spec("opentelemetry.exporter") is not None
    )


def choose_exporter(environment: Mapping[str, str]) -> str | None:
    """Return how spans are exported: `grpc`, `http/protobuf` or `console`; None: they are not.

    They are exported if an endpoint or an exporter is named. Nothing is sent without that: a
    collector on this machine must also be named.
    """
    if environment.get(DISABLED, "").strip().lower() == "true":
        return None
    named = [one.strip().lower() for one in environment.get(EXPORTERS, "").split(",")]
    if any(named):
        if "console" in named:
            return "console"
        if "otlp" not in named:
            return None
    elif not any(environment.get(name) for name in ENDPOINTS):
        return None
    given = (environment.get(name, "").strip().lower() for name in PROTOCOLS)
    return next((one for one in given if one), DEFAULT_PROTOCOL)
