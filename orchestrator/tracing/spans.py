"""Spans, as OpenTelemetry's API makes them, and the context of their parent.

The API is used where another module has imported it: this package's exporter, a library, or the
program that embeds this package. Otherwise nothing is recorded, and a context is only passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ..jobs.failures import JobFailure
from ..jobs.trace_context import TraceContext
from ..version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | int | float | bool]

SCOPE = "fanout"
"""The name of the instrumentation: only its spans have fanout's texts in their status."""
NANOSECONDS = 1_000_000_000

_continued: ContextVar[TraceContext | None] = ContextVar("continued", default=None)
given_ids: ContextVar[tuple[str, str] | None] = ContextVar("given_ids", default=None)
"""The ids of the trace and of the span that begins next, for `export`; None: random ones."""


def current() -> TraceContext | None:
    """Return the current span, or the caller's; None: there is none."""
    if _is_loaded():
        from opentelemetry.trace import get_current_span  # noqa: PLC0415 - it is loaded

        found = get_current_span().get_span_context()
        if found.is_valid:
            return TraceContext(
                f"{found.trace_id:032x}", f"{found.span_id:016x}", found.trace_flags.sampled
            )
    return _continued.get()


@contextlib.contextmanager
def below(context: TraceContext | None) -> Iterator[None]:
    """Put the spans of the context below a span of another process; None changes nothing."""
    if context is None:
        yield
        return
    token = _continued.set(context)
    try:
        if not _is_loaded():
            yield
            return
        from opentelemetry.context import attach, detach  # noqa: PLC0415 - it is loaded

        attached = attach(_remote(context))
        try:
            yield
        finally:
            detach(attached)
    finally:
        _continued.reset(token)


def continue_in_task(context: TraceContext | None) -> None:
    """Put the later spans of this task below a span of another process; None changes nothing.

    For generators, which cannot be inside of `below`: each of their steps may have another context.
    """
    if context is not None:
        _continued.set(context)
        if _is_loaded():
            from opentelemetry.context import attach  # noqa: PLC0415 - it is loaded

            attach(_remote(context))


class OpenSpan:
    """An open span; one that is not recorded keeps nothing."""

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        """Change its name."""
        if self._span is not None:
            self._span.update_name(name)

    def note(self, **attributes: str | float | None) -> None:
        """Add attributes `fanout.…` that are not None."""
        for name, value in attributes.items():
            self.set(f"fanout.{name}", value)

    def set(self, name: str, value: str | float | None) -> None:
        """Add an attribute, if it is not None."""
        if self._span is not None and value is not None:
            self._span.set_attribute(name, value)

    def fail(self, kind: str) -> None:
        """Record that it did not succeed.

        Args:
            kind: The type of the error; its text may quote anything, and is not recorded.
        """
        if self._span is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - it is loaded

            self._span.set_attribute("error.type", kind)
            self._span.set_status(StatusCode.ERROR, kind)


@contextlib.contextmanager
def span(
    name: str,
    kind: Kind = "internal",
    attributes: Attributes | None = None,
    *,
    span_id: str | None = None,
    trace_id: str = "",
    begin: float | None = None,
    links: Sequence[TraceContext] = (),
) -> Iterator[OpenSpan]:
    """Record the time of the context, below `current`.

    Args:
        name: One of few values: no ids and no texts.
        kind: See OpenTelemetry's SpanKind.
        attributes: The attributes that are known at its beginning.
        span_id: Its id; None: a random one.
        trace_id: The id of its trace, if it has no parent and `span_id` is given.
        begin: When it began, in seconds since the epoch; None: now.
        links: Other spans that it follows from.
    """
    if not _is_loaded():
        yield OpenSpan()
        return
    recorded = _started(name, kind, attributes, span_id, trace_id, begin, links)
    from opentelemetry.trace import use_span  # noqa: PLC0415 - it is loaded

    opened = OpenSpan(recorded)
    with use_span(
        recorded, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield opened
        except asyncio.CancelledError:
            opened.set("fanout.cancelled", value=True)
            raise
        except Exception as error:
            opened.fail(type(error).__name__)
            raise


def record(
    name: str,
    begin: float,
    end: float,
    attributes: Attributes | None = None,
    *,
    kind: Kind = "internal",
    span_id: str | None = None,
    trace_id: str = "",
    links: Sequence[TraceContext] = (),
    failure: str | None = None,
) -> TraceContext | None:
    """Record a past span below `current`; return its context, None if nothing is recorded.

    Args:
        name: One of few values: no ids and no texts.
        begin: Its begin in seconds since the epoch.
        end: Its end in seconds since the epoch.
        attributes: Its attributes.
        kind: See OpenTelemetry's SpanKind.
        span_id: Its id; None: a random one.
        trace_id: The id of its trace, if it has no parent and `span_id` is given.
        links: Other spans that it follows from.
        failure: The type of its error.
    """
    if not _is_loaded():
        return None
    recorded = _started(name, kind, attributes, span_id, trace_id, begin, links)
    if failure is not None:
        OpenSpan(recorded).fail(failure)
    recorded.end(round(max(begin, end) * NANOSECONDS))
    found = recorded.get_span_context()
    if not found.is_valid:
        return None
    return TraceContext(
        f"{found.trace_id:032x}", f"{found.span_id:016x}", found.trace_flags.sampled
    )


def kind_of(failure: BaseException) -> str:
    """Return a span's text for a failure: its class if it is fanout's, else a fixed text."""
    return type(failure).__name__ if isinstance(failure, JobFailure) else "unexpected"


def _started(
    name: str,
    kind: Kind,
    attributes: Attributes | None,
    span_id: str | None,
    trace_id: str,
    begin: float | None,
    links: Sequence[TraceContext],
) -> Span:
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - it is loaded

    token = given_ids.set(None if span_id is None else (trace_id, span_id))
    try:
        return _tracer().start_span(
            name,
            kind=SpanKind[kind.upper()],
            attributes=dict(attributes or {}),
            start_time=None if begin is None else round(begin * NANOSECONDS),
            links=[_link(one) for one in links],
        )
    finally:
        given_ids.reset(token)


@cache
def _tracer() -> Tracer:
    from opentelemetry.trace import get_tracer  # noqa: PLC0415 - it is loaded

    return get_tracer(SCOPE, VERSION)


def _is_loaded() -> bool:
    """Return whether this process uses OpenTelemetry: importing it takes tenths of a second."""
    return sys.modules.get("opentelemetry.trace") is not None


def _remote(context: TraceContext) -> Context:
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context  # noqa: PLC0415

    return set_span_in_context(NonRecordingSpan(_span_context(context)))


def _link(context: TraceContext) -> Link:
    from opentelemetry.trace import Link  # noqa: PLC0415 - it is loaded

    return Link(_span_context(context))


def _span_context(context: TraceContext) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - it is loaded

    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(context.is_sampled)),
    )
