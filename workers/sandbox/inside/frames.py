"""The frames between a resident and its client. Also runs inside the sandbox: see `resident`.

frame     a prefix (see `PREFIX`: kind, number, header length, payload length), header, payload
header    empty, or an encoded dict (see `encode`)

kind      direction   header                                          number
READY     to client   -                                               0
REQUEST   to resident {op, arguments}, and a payload                  the request's, never reused
CANCEL    to resident -                                               the request's
CREDIT    to resident -: the client has taken one part                the request's
MORE      to client   -, and a payload: a part of a large reply       the request's
REPLY     to client   {result}, and a payload | {errno, path}         the request's
                      | {refused, message}
TUNNEL    both        see `forward`                                   the tunnel's

Whether a frame may come at all is decided by its prefix, before anything that follows is kept or
decoded: its peer may be under a job's control.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Accept = Callable[[int, int, int, int], None]
    """Takes a prefix: kind, number, header length, payload length; raises FrameError."""
    Frame = tuple[int, int, bytes, bytes]
    """Kind, number, header, payload."""

READY, REQUEST, CANCEL, CREDIT, MORE, REPLY, TUNNEL = range(7)

PREFIX = struct.Struct(">BqII")
MAX_HEADER_BYTES = 4 << 20
"""The largest header of a request: an argv and an environment fit, of which the kernel takes 2 MiB
together."""
MAX_REPLY_HEADER_BYTES = 64 << 10
"""The largest header of a reply: fanout's have a path of at most 4 KiB, and the steward's a list of
jobs."""
MAX_TUNNEL_HEADER_BYTES = 64
"""The largest header of a tunnel's frame: an event and a number; there may be thousands a second.
"""
MAX_PAYLOAD_BYTES = 16 << 20
"""Two whole outputs of a command fit, with room."""
CHUNK_BYTES = 1 << 20
"""The size of the parts of a large content, in either direction."""
CHUNKS_IN_FLIGHT = 8
"""How many parts of a reply may be unacknowledged."""
MAX_DEPTH = 16
"""Nesting of a header: ours have four levels, and parsing must not need a deep stack."""
MAX_DIGITS = 32
"""The most digits of a number in a header: parsing longer ones takes more than linear time."""
MAX_REPLY_VALUES = 4096
"""The most values in a reply's header, which is decoded on the client's loop: 4,096 take about 10
ms."""
_UNLIMITED = 1 << 62
_INFINITE = float("inf")


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
        raw = _encoded_text(value)
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


def _encoded_text(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, which no name and no command has
        return text.encode("utf-8", "replace")


def decode(data: bytes, max_values: int = _UNLIMITED) -> Any:
    """Decode what `encode` returned; tuples become lists.

    Args:
        data: the whole encoded value.
        max_values: of how many values it may consist; lists and dicts count as well.

    Raises:
        FrameError: the bytes are something else, or have more values.
    """
    decoder = _Decoder(data, max_values)
    try:
        value = decoder.value(0)
    except (ValueError, TypeError) as error:
        raise FrameError(f"malformed value: {type(error).__name__}") from error
    if decoder.at != len(data):
        raise FrameError("bytes after the value")
    return value


def decode_header(data: bytes, max_values: int = _UNLIMITED) -> dict[str, Any]:
    """Decode a frame's header; see `decode`.

    Raises:
        FrameError: it is something else than a dict.
    """
    header = decode(data, max_values)
    if not isinstance(header, dict):
        raise FrameError("a header is a dict")
    return header


class _Decoder:
    """The position in an encoded value."""

    def __init__(self, data: bytes, max_values: int) -> None:
        self.at = 0
        self._data, self._left = data, max_values

    def value(self, depth: int) -> Any:
        """Decode the value at the position, and move behind it."""
        self._left -= 1
        if self._left < 0:
            raise FrameError("too many values")
        kind = self._data[self.at : self.at + 1]
        self.at += 1
        if kind in (b"n", b"t", b"f"):
            return {b"n": None, b"t": True, b"f": False}[kind]
        if kind in (b"l", b"m") and depth < MAX_DEPTH:
            return self._items(kind, depth + 1)
        end = self._data.index(b";", self.at, self.at + MAX_DIGITS)
        digits, self.at = self._data[self.at : end], end + 1
        if kind == b"i":
            return int(digits)
        if kind == b"d":
            number = float(digits)
            if not -_INFINITE <= number <= _INFINITE:
                raise FrameError("not a number")
            return number
        return self._text(kind, int(digits))

    def _items(self, kind: bytes, depth: int) -> Any:
        items = []
        while self._data[self.at : self.at + 1] != b"e":
            items.append(self.value(depth))
        self.at += 1
        if kind == b"l":
            return items
        if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise FrameError("a dict has str keys, each with a value")
        found = {items[i]: items[i + 1] for i in range(0, len(items), 2)}
        if len(found) * 2 != len(items):
            raise FrameError("a dict has each key once")
        return found

    def _text(self, kind: bytes, size: int) -> Any:
        stop = self.at + size
        if kind not in (b"s", b"b") or not self.at <= stop <= len(self._data):
            raise FrameError("unknown kind or wrong length")
        raw, self.at = self._data[self.at : stop], stop
        return raw.decode("utf-8", "surrogateescape") if kind == b"s" else raw


def pack_frame(
    kind: int, number: int, header: dict[str, Any] | None = None, payload: bytes = b""
) -> bytes:
    """Return a whole frame.

    Raises:
        FrameError: it is too large.
    """
    head = b"" if header is None else encode(header)
    limit = MAX_HEADER_BYTES if kind == REQUEST else MAX_REPLY_HEADER_BYTES
    if len(head) > limit or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError("the frame is too big")
    return PREFIX.pack(kind, number, len(head), len(payload)) + head + payload


class FrameReader:
    """Splits a stream of bytes into frames. What `accept` refuses is not kept."""

    def __init__(self, accept: Accept) -> None:
        self._accept = accept
        self._data = bytearray()
        self._prefix: tuple[int, int, int, int] | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add data and yield the frames that are complete.

        Raises:
            FrameError: the stream breaks the protocol; the rest of it cannot be parsed either.
        """
        self._data += data
        while True:
            if self._prefix is None:
                if len(self._data) < PREFIX.size:
                    return
                prefix = PREFIX.unpack_from(self._data)
                self._accept(*prefix)
                self._prefix = prefix
            kind, number, header_bytes, payload_bytes = self._prefix
            middle = PREFIX.size + header_bytes
            end = middle + payload_bytes
            if len(self._data) < end:
                return
            view = memoryview(self._data)
            header, payload = bytes(view[PREFIX.size : middle]), bytes(view[middle:end])
            view.release()
            del self._data[:end]
            self._prefix = None
            yield kind, number, header, payload
