"""The frames between a resident and its client. Also runs inside the sandbox: see `resident`.

frame     4 bytes header length, 4 bytes payload length (big endian), header, payload
header    an encoded dict (see `encode`)

request   {id, op, arguments} + payload       `cancel` and `credit` name a request as `target`, and
                                              get no reply
more      {id, more: True} + payload          any number before the reply: output, or a part of a
                                              large reply
reply     {id, result} + payload  |  {id, errno, path}  |  {id, refused, message}
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_HEADER_BYTES = 4 << 20
"""An argv and an environment fit: the kernel takes 2 MiB of both together."""
MAX_PAYLOAD_BYTES = 16 << 20
"""Two whole outputs of a command fit, with room."""
CHUNK_BYTES = 1 << 20
"""The size of the parts of a large content, in either direction."""
CHUNKS_IN_FLIGHT = 8
"""How many parts of a reply may be unacknowledged."""
MAX_DEPTH = 16
"""Nesting of a header: ours have four levels, and parsing must not need a deep stack."""
MAX_DIGITS = 32
"""Of a number in a header: parsing longer ones takes more than linear time."""


class FrameError(ValueError):
    """The bytes are not a frame of this protocol."""


def encode(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, lists, and dicts with str keys."""
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes]) -> None:
    if value is None or value is True or value is False:
        parts.append({None: b"n", True: b"t", False: b"f"}[value])
    elif isinstance(value, int):
        parts.append(b"i%d;" % value)
    elif isinstance(value, float):
        parts.append(b"d%s;" % repr(value).encode())
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        parts += (b"s%d;" % len(raw), raw)
    elif isinstance(value, bytes):
        parts += (b"b%d;" % len(value), value)
    elif isinstance(value, (list, tuple)):
        parts.append(b"l")
        for item in value:
            _encode(item, parts)
        parts.append(b"e")
    else:
        parts.append(b"m")
        for key, item in value.items():
            _encode(key, parts)
            _encode(item, parts)
        parts.append(b"e")


def decode(data: bytes) -> Any:
    """Decode what `encode` returned; tuples become lists.

    Raises:
        FrameError: the bytes are something else.
    """
    try:
        value, end = _decode(data, 0, 0)
    except (ValueError, TypeError) as error:
        raise FrameError(f"malformed value: {type(error).__name__}") from error
    if end != len(data):
        raise FrameError("bytes after the value")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    at += 1
    if kind in (b"n", b"t", b"f"):
        return {b"n": None, b"t": True, b"f": False}[kind], at
    if kind in (b"l", b"m") and depth < MAX_DEPTH:
        items = []
        while data[at : at + 1] != b"e":
            item, at = _decode(data, at, depth + 1)
            items.append(item)
        if kind == b"l":
            return items, at + 1
        if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise FrameError("a dict has str keys, each with a value")
        return {items[i]: items[i + 1] for i in range(0, len(items), 2)}, at + 1
    end = data.index(b";", at, at + MAX_DIGITS)
    if kind == b"i":
        return int(data[at:end]), end + 1
    if kind == b"d":
        return float(data[at:end]), end + 1
    stop = end + 1 + int(data[at:end])
    raw = data[end + 1 : stop]
    if kind not in (b"s", b"b") or not end < stop <= len(data):
        raise FrameError("unknown kind or wrong length")
    return (raw.decode("utf-8", "surrogateescape") if kind == b"s" else raw), stop


def pack_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return a whole frame.

    Raises:
        FrameError: it is too large.
    """
    head = encode(header)
    if len(head) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError("the frame is too big")
    return struct.pack(">II", len(head), len(payload)) + head + payload


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Add data and yield the frames that are complete.

        Raises:
            FrameError: the stream breaks the protocol; the rest of it cannot be parsed either.
        """
        self._data += data
        while len(self._data) >= 8:  # noqa: PLR2004 - the two lengths
            header_bytes, payload_bytes = struct.unpack_from(">II", self._data)
            if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
                raise FrameError("the frame is too big")
            end = 8 + header_bytes + payload_bytes
            if len(self._data) < end:
                return
            header = decode(bytes(self._data[8 : 8 + header_bytes]))
            payload = bytes(self._data[8 + header_bytes : end])
            del self._data[:end]
            if not isinstance(header, dict):
                raise FrameError("a header is a dict")
            yield header, payload
