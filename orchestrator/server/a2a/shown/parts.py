"""Parts of messages and artifacts, and times, in the protocol's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.types import Part
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp

NANOSECONDS = 1_000_000_000
EXACT = 2**53
"""Up to which a floating-point number is the whole number that was sent."""


def data_part(data: Any, **metadata: Any) -> Part:
    """Return a part with structured data.

    Args:
        data: What JSON can hold.
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


def time_of(seconds: float) -> Timestamp:
    """Return a time of our records, seconds since the epoch, as the protocol's."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1000) * (NANOSECONDS // 1000))
    return stamp


def plain(received: Any) -> Any:
    """Return structured data of the protocol as JSON has it, whole numbers as such.

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


def texts_in(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metadata whose names begin with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): value
        for name, value in metadata.items()
        if name.startswith(prefix)
    }
