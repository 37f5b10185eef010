"""The spans of a job's attempts, whoever reports them.

A job has a span of its own, from its submission to its first attempt, which all its attempts are
below. Their ids follow from what its record says, so that they are the same for a worker that runs
an attempt and for one that reports an attempt whose worker was lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import isfinite
from typing import NamedTuple, Self

import structlog

from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.orchestrator.jobs.store.records import Records
from fanout.orchestrator.jobs.timeline import Phase, PhaseKind
from fanout.orchestrator.jobs.trace_context import (
    TraceContext,
    attempt_span_id,
    find_trace_id,
    job_span_id,
    read_traceparent,
)
from fanout.orchestrator.tracing import spans

from ..telemetry import flush_spans, is_exported, is_sampled

log = structlog.get_logger(__name__)

LONGEST_TRANSIT_SECONDS = 24 * 3600.0
"""Between the dispatch of a message and its claim: a worker that is busy leaves it in the queue."""
_BETWEEN_ATTEMPTS = frozenset({PhaseKind.QUEUED, PhaseKind.WAITING})
_UNFINISHED_ATTEMPT = "WorkerLost"
"""What the span of an attempt says whose worker could not report it."""


class ClaimTimes(NamedTuple):
    """When a job came to this worker, in seconds since the epoch."""

    sent_at: float | None
    """When its message was sent; None: it does not say."""
    asked_at: float
    """When it was to be claimed."""
    claimed_at: float

    @classmethod
    def of(cls, sent_at: object, asked_at: float, claimed_at: float) -> Self:
        """Return the times; what a message says is not believed if it cannot be true."""
        try:
            sent = float(str(sent_at))
        except ValueError:
            return cls(None, asked_at, claimed_at)
        is_possible = isfinite(sent) and asked_at - LONGEST_TRANSIT_SECONDS < sent <= asked_at
        return cls(sent if is_possible else None, asked_at, claimed_at)


def job_context(spec: JobSpec) -> TraceContext:
    """Return the context of a job's own span."""
    trace_id = find_trace_id(spec)
    given = read_traceparent(spec.traceparent)
    is_recorded = is_sampled(trace_id) if given is None else given.is_sampled
    return TraceContext(trace_id, job_span_id(trace_id, spec.id), is_recorded)


@asynccontextmanager
async def traced_attempt(
    records: Records, claim: Claim, worker: str, times: ClaimTimes
) -> AsyncIterator[spans.OpenSpan]:
    """Record an attempt, and what came before it; all logs meanwhile have the ids of its trace.

    Args:
        records: Where the job's record is.
        claim: The attempt.
        worker: The name of this worker.
        times: When it was claimed.
    """
    job = job_context(claim.spec)
    if not is_exported():
        with spans.below(job):
            yield spans.OpenSpan()
        return
    phases = await _phases(records, claim)
    begun = [_attempt_context(claim.spec, job, at) for at in _beginnings(phases)]
    if claim.is_first:
        _record_job(claim, job)
    with _sent_at_once(), spans.below(job):
        _record_wait(phases, times.asked_at)
        if times.sent_at is not None:
            spans.record("dispatch", times.sent_at, times.asked_at)
        with spans.span(
            f"invoke_agent {claim.spec.agent}",
            "consumer",
            {**_attributes(claim.spec, len(begun)), "fanout.worker": worker},
            span_id=begun[-1].span_id if begun else None,
            begin=times.asked_at,
            links=begun[-2:-1],
        ) as span:
            spans.record("claim", times.asked_at, times.claimed_at)
            yield span


def record_lost_attempt(record: JobRecord, lost_at: float) -> None:
    """Record an attempt whose worker was lost, so that its spans have a parent.

    Args:
        record: The job, which another worker may run already.
        lost_at: When the attempt ended, in seconds since the epoch by the Redis server's clock.
    """
    beginnings = [one for one in _beginnings(record.phases) if one <= lost_at]
    if not (is_exported() and beginnings):
        return
    job = job_context(record)
    began = beginnings[-1]
    with spans.below(job):
        spans.record(
            f"invoke_agent {record.agent}",
            began,
            lost_at,
            _attributes(record, len(beginnings)),
            kind="consumer",
            span_id=_attempt_context(record, job, began).span_id,
            failure=_UNFINISHED_ATTEMPT,
            links=[_attempt_context(record, job, one) for one in beginnings[-2:-1]],
        )


@contextmanager
def _sent_at_once() -> Iterator[None]:
    """Send what ends meanwhile without waiting for more.

    Spans below an attempt may have left this process already, and nobody reports an attempt that
    has ended, should the worker be killed now.
    """
    try:
        yield
    finally:
        flush_spans()


async def _phases(records: Records, claim: Claim) -> tuple[Phase, ...]:
    """Return the phases of a job that was just claimed; none if they cannot be read."""
    try:
        return (await records.get(claim.spec.id)).phases
    except JobFailure as failure:
        log.warning("attempt not traced completely", error=type(failure).__name__)
        return ()


def _attributes(spec: JobSpec, attempt: int) -> dict[str, str | int]:
    """Return the attributes of the span of a job's attempt, given its number from 1."""
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": spec.agent,
        "gen_ai.conversation.id": spec.id,
        "fanout.job": spec.id,
        "fanout.attempt": attempt,
    }


def _beginnings(phases: tuple[Phase, ...]) -> list[float]:
    """Return when each attempt of a job began, in seconds since the epoch."""
    found, is_between = [], True
    for phase in phases:
        if phase.kind in _BETWEEN_ATTEMPTS:
            is_between = True
        elif is_between:
            found.append(phase.begin)
            is_between = False
    return found


def _attempt_context(spec: JobSpec, job: TraceContext, began_at: float) -> TraceContext:
    span_id = attempt_span_id(job.trace_id, spec.id, began_at)
    return TraceContext(job.trace_id, span_id, job.is_sampled)


def _record_job(claim: Claim, job: TraceContext) -> None:
    """Record the job's own span, below the one who submitted it, and send it at once.

    All others of the job are below it, so it must not be lost with this worker.
    """
    spec = claim.spec
    with spans.below(read_traceparent(spec.traceparent)):
        spans.record(
            f"job {spec.agent}",
            claim.submitted_at,
            claim.started_at,
            {
                "fanout.job": spec.id,
                "fanout.root": spec.root_id,
                "fanout.agent": spec.agent,
                "fanout.tenant": spec.tenant,
                "fanout.depth": spec.depth,
            },
            span_id=job.span_id,
            trace_id=job.trace_id,
        )
    flush_spans()


def _record_wait(phases: tuple[Phase, ...], claim_sent_at: float) -> None:
    """Record how long the job has waited since its last attempt."""
    last = _last_beginning(phases)
    since = [one for one in phases if one.kind in _BETWEEN_ATTEMPTS and last <= one.begin]
    for phase in since:
        name = "queue" if phase.kind is PhaseKind.QUEUED else "parked"
        spans.record(name, phase.begin, phase.end or claim_sent_at)


def _last_beginning(phases: tuple[Phase, ...]) -> float:
    """Return when the attempt before the newest one began; 0 if there was none."""
    beginnings = _beginnings(phases)
    return beginnings[-2] if len(beginnings) > 1 else 0
