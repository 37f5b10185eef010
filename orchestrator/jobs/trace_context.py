"""The trace that a job belongs to, and its place in it: W3C Trace Context.

Ids are derived from what the ledger stores, so that any process can name a span of a job: one that
continues a trace, and one that reports a span whose process was killed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

MAX_TRACEPARENT_CHARACTERS = 256
"""The longest accepted `traceparent`. Version 00 has 55 characters; later versions may append
fields, which are not read."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_KNOWN_VERSION, _INVALID_VERSION, _SAMPLED = "00", "ff", 1


@dataclass(frozen=True)
class TraceContext:
    """A span of a trace, the parent of further spans."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool = True
    """Whether the spans of the trace are recorded."""

    def __str__(self) -> str:
        """Return it as a `traceparent`."""
        return f"{_KNOWN_VERSION}-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


class Traced(Protocol):
    """What a job's trace is derived from: its specification, or a record of it."""

    @property
    def root_id(self) -> str:
        """The tree that the job belongs to."""

    @property
    def traceparent(self) -> str | None:
        """The trace context of the submitter."""


def read_traceparent(text: str | None) -> TraceContext | None:
    """Return the context that a `traceparent` names; None if it has not the form of one."""
    if not text or len(text) > MAX_TRACEPARENT_CHARACTERS:
        return None
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_invalid = version == _INVALID_VERSION or (version == _KNOWN_VERSION and more is not None)
    if is_invalid or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def usable_traceparent(text: str | None) -> str | None:
    """Return a `traceparent` in the form of version 00; None if it has not the form of one."""
    found = read_traceparent(text)
    return None if found is None else str(found)


def find_trace_id(job: Traced) -> str:
    """Return the id of a job's trace: that of its `traceparent`, else one of its tree."""
    given = read_traceparent(job.traceparent)
    return given.trace_id if given else _digest("trace", job.root_id)[:32]


def job_span_id(trace_id: str, job_id: str) -> str:
    """Return the id of a job's own span, which its attempts are below."""
    return _digest("job", trace_id, job_id)[:16]


def attempt_span_id(trace_id: str, job_id: str, began_at: float) -> str:
    """Return the id of the span of one attempt.

    Args:
        trace_id: The job's trace.
        job_id: The job.
        began_at: When it was claimed, as the job's phases say it, in seconds since the epoch.
    """
    return _digest("attempt", trace_id, job_id, str(round(began_at * 1000)))[:16]


def _digest(*parts: str) -> str:
    return sha256("/".join(parts).encode()).hexdigest()
