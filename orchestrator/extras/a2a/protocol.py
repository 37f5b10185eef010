"""The protocol's types for what jobs have: ids, contexts and states, parts of messages, times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.types import Part, TaskState
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp

from ...jobs.state import JobRecord, JobState

CONTEXT_LABEL = "a2a.context"
MESSAGE_LABEL = "a2a.message"
DIGEST_LABEL = "a2a.digest"

STATES: Mapping[JobState, TaskState] = {
    JobState.QUEUED: TaskState.TASK_STATE_SUBMITTED,
    JobState.RUNNING: TaskState.TASK_STATE_WORKING,
    JobState.WAITING: TaskState.TASK_STATE_WORKING,
    JobState.SUCCEEDED: TaskState.TASK_STATE_COMPLETED,
    JobState.FAILED: TaskState.TASK_STATE_FAILED,
    JobState.TIMED_OUT: TaskState.TASK_STATE_FAILED,
    JobState.CANCELLED: TaskState.TASK_STATE_CANCELED,
}
"""A waiting job is working from its client's point of view, because it waits for its tasks. When it
waits for decisions, `input_required` takes the place of its state."""
NANOSECONDS = 1_000_000_000
EXACT = 2**53
"""The limit up to which a floating-point number is exactly the whole number that was sent."""


def job_context(record: JobRecord) -> str:
    """Return the context of a job: that of its first message, or the job itself."""
    return record.labels.get(CONTEXT_LABEL, record.id)


def state_changed_time(record: JobRecord) -> float:
    """Return when a job entered its state, as far as its record shows it."""
    return record.finished_at or record.started_at or record.submitted_at


def data_part(data: Any, **metadata: Any) -> Part:
    """Return a part with structured data.

    Args:
        data: A JSON value.
        metadata: The part's metadata.
    """
    part = Part(data=ParseDict(data, Value()), media_type="application/json")
    if metadata:
        part.metadata.update(metadata)
    return part


def file_part(content: bytes, name: str, media_type: str) -> Part:
    """Return a part with a file's content."""
    return Part(raw=content, filename=name, media_type=media_type)


def link_part(url: str, name: str, media_type: str, **metadata: Any) -> Part:
    """Return a part with the address of a file's content."""
    part = Part(url=url, filename=name, media_type=media_type)
    if metadata:
        part.metadata.update(metadata)
    return part


def to_timestamp(seconds: float) -> Timestamp:
    """Return a time of the records, seconds since the epoch, in the protocol's form."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1000) * (NANOSECONDS // 1000))
    return stamp


def plain(received: Any) -> Any:
    """Return structured data of the protocol as JSON, with whole numbers as integers.

    The protocol's types know only floating-point numbers: a `2` arrives as `2.0`.

    Args:
        received: A `Struct` or a `Value`.
    """
    return _with_integers(MessageToDict(received))


def _with_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_integers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_integers(one) for one in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < EXACT
    return int(value) if is_whole else value


def collect_texts(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metadata whose names begin with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): value
        for name, value in metadata.items()
        if name.startswith(prefix)
    }
