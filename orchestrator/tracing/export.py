"""Sends spans to a collector, as OpenTelemetry's own variables name it.

Spans are exported by whole steps, each span together with those below it, so that a killed process
leaves no span without its parent. An attempt is not a step: it may last for hours, and others can
report it while it runs (`workers.attempt.traced`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_SCHEDULE_DELAY,
    OTEL_SERVICE_NAME,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace.status import Status

from ..valid_text import clean_text
from ..version import VERSION
from .collectors import choose_exporter, has_exporter
from .spans import SCOPE, given_ids

log = logging.getLogger(__name__)

SCHEDULE_DELAY_MS = 1_000
"""The delay of exports, unless `OTEL_BSP_SCHEDULE_DELAY` sets it: a killed worker loses the spans
that ended within the last second."""
SHUTDOWN_SECONDS = 2.0
"""The time for the last spans at the end of a process; a collector that hangs does not delay it
longer."""
MAX_NAME_CHARACTERS = 120
"""The longest name of a span: tools and models are named by others."""
MAX_VALUE_CHARACTERS = 300
"""The longest text of an attribute, for the same reason; longer ones are contents."""
MAX_HELD_SPANS = 2_000
"""The most spans held below one step that has not ended: a request or a tool call has some ten."""
STEP_OF_ITS_OWN = "fanout.attempt"
"""The attribute of a span whose children do not wait for its end."""
CONTENT = "ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"
"""ADK's variable: prompts and results are in traces only where a person sets it to `true`."""
_CONTENTS = frozenset(
    {
        "gen_ai.agent.description",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.definitions",
        "gen_ai.tool.description",
        "user.id",
    }
)
_OF_ADK = "gcp.vertex.agent."
"""The beginning of attributes for ADK's own page, some of which are contents."""

_providers: list[TracerProvider] = []
_flush_turn = threading.Lock()
_flush_waits = threading.Event()
"""Set while a flush waits for its turn: it sends all spans that have ended until then, so one is
enough."""


def start(
    service: str, wrap: Callable[[TracerProvider], trace.TracerProvider] = lambda made: made
) -> None:
    """Export the spans of this process; if the packages are missing, log that and export nothing.

    Args:
        service: The name of the process, unless `OTEL_SERVICE_NAME` says another.
        wrap: Returns the provider that libraries see.
    """
    protocol = choose_exporter(os.environ)
    if protocol is None or _providers:
        return
    exporter = _exporter(protocol) if has_exporter() else None
    if exporter is None:
        log.warning("no telemetry: pip install 'fanout-orchestrator[otel]'")
        return
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would print stack traces
    os.environ.setdefault(CONTENT, "false")
    has_contents = os.environ[CONTENT].strip().lower() in {"true", "1", "yes", "on"}
    named = {} if os.environ.get(OTEL_SERVICE_NAME) else {"service.name": service}
    provider = TracerProvider(
        resource=Resource.create({**named, "service.version": VERSION}),
        id_generator=_GivenIds(),
        span_limits=SpanLimits(max_attribute_length=None if has_contents else MAX_VALUE_CHARACTERS),
        shutdown_on_exit=False,  # it would wait for a collector that hangs
    )
    delay = None if os.environ.get(OTEL_BSP_SCHEDULE_DELAY) else SCHEDULE_DELAY_MS
    cleaned = CleaningExporter(exporter, has_contents=has_contents)
    provider.add_span_processor(StepProcessor(cleaned, schedule_delay_millis=delay))
    _providers.append(provider)
    trace.set_tracer_provider(wrap(provider))


def is_sampled(trace_id: str) -> bool:
    """Return whether `OTEL_TRACES_SAMPLER` records a trace that begins with this id."""
    if not _providers:
        return True
    decided = _providers[0].sampler.should_sample(Context(), int(trace_id, 16), SCOPE)
    return decided.decision is not Decision.DROP


def flush_in_background() -> None:
    """Send the ended spans without waiting for the next batch; returns at once."""
    if _providers and not _flush_waits.is_set():
        _flush_waits.set()
        threading.Thread(target=_flush, args=(_providers[0],), daemon=True).start()


def _flush(provider: TracerProvider) -> None:
    with _flush_turn:
        _flush_waits.clear()
        provider.force_flush()


def stop() -> None:
    """Send the last spans, and export no more; returns after `SHUTDOWN_SECONDS` at the latest."""
    while _providers:
        ending = threading.Thread(target=_providers.pop().shutdown, daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS)


def _exporter(protocol: str) -> SpanExporter | None:
    """Return the exporter for a protocol; None if its package is not installed."""
    if protocol == "console":
        return ConsoleSpanExporter()
    package = "grpc" if protocol == "grpc" else "http"
    try:
        module = import_module(f"opentelemetry.exporter.otlp.proto.{package}.trace_exporter")
    except ImportError:
        return None
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter


class _GivenIds(RandomIdGenerator):
    """Gives spans the ids that `spans` asks for, and all others random ones."""

    def generate_trace_id(self) -> int:
        """Return the id of a trace that begins."""
        given = given_ids.get()
        return int(given[0], 16) if given and given[0] else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the id of a span."""
        given = given_ids.get()
        return int(given[1], 16) if given else super().generate_span_id()


class StepProcessor(BatchSpanProcessor):
    """Exports a span together with those below it, when it has ended."""

    def __init__(self, exporter: SpanExporter, **options: Any) -> None:
        super().__init__(exporter, **options)
        self._lock = threading.Lock()
        self._steps: dict[int, int] = {}
        """Open span -> the outermost open span that it is below, or itself."""
        self._held: dict[int, list[ReadableSpan]] = {}
        """Outermost open span -> the spans below it that have ended."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Determine the step of a span."""
        super().on_start(span, parent_context)
        span_id, parent = span.get_span_context().span_id, span.parent
        with self._lock:
            if span.attributes and STEP_OF_ITS_OWN in span.attributes:
                return
            above = None if parent is None else self._steps.get(parent.span_id)
            self._steps[span_id] = span_id if above is None else above
            if above is None:
                self._held[span_id] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Export a step that has ended, or keep a span of one that has not."""
        span_id = _hex_id(span)
        with self._lock:
            step = self._steps.pop(span_id, span_id)
            held = self._held.get(step)
            if held is None:
                ready = [span]
            elif step == span_id:
                ready = [span, *self._held.pop(step)]
            elif len(held) >= MAX_HELD_SPANS:
                ready = [span, *held]
                held.clear()
            else:
                held.append(span)
                ready = []
        for one in ready:
            super().on_end(one)


class CleaningExporter(SpanExporter):
    """Sends spans without texts that may quote prompts, files or secrets; never fails.

    Args:
        exporter: Sends them.
        has_contents: Whether a person wants prompts and results in the spans.
    """

    def __init__(self, exporter: SpanExporter, *, has_contents: bool) -> None:
        self._exporter = exporter
        self._has_contents = has_contents
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; a failure is logged once until it works again."""
        try:
            result = self._exporter.export([self._cleaned(one) for one in spans])
        except Exception as error:  # noqa: BLE001 - a collector must not disturb a job
            result, reason = SpanExportResult.FAILURE, type(error).__name__
        else:
            reason = "the collector does not accept them"
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._fails:
            log.warning("traces are not exported: %s", reason)
        self._fails = failed
        return result

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)

    def _cleaned(self, span: ReadableSpan) -> ReadableSpan:
        scope = span.instrumentation_scope
        is_ours = scope is not None and scope.name == SCOPE
        status = span.status
        return ReadableSpan(
            name=clean_text(span.name)[:MAX_NAME_CHARACTERS],
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._kept(span.attributes or {}),
            # Exceptions are all that libraries report as events, with their texts and stacks.
            events=span.events if self._has_contents else (),
            links=span.links,
            kind=span.kind,
            instrumentation_scope=scope,
            status=status if is_ours or self._has_contents else Status(status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
        )

    def _kept(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        return MappingProxyType(
            {
                name: clean_text(value) if isinstance(value, str) else value
                for name, value in attributes.items()
                if self._has_contents or not (name in _CONTENTS or name.startswith(_OF_ADK))
            }
        )


def _hex_id(span: ReadableSpan) -> int:
    context = span.context
    return context.span_id if context is not None else trace.INVALID_SPAN_ID
