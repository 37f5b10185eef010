"""HTTP/1.1 by h11, without forms that two programs can read differently.

The service and a proxy in front of it have to agree where each request ends, and for which host it
is; otherwise one caller's bytes become the request of another (request smuggling). h11 accepts
forms that other programs read differently: line ends without a carriage return, folded lines, a
length together with a transfer coding, chunk extensions. Here such a request is refused, and its
connection ends (RFC 9112, sections 2.2, 3.2, 5, 6 and 7).
"""

from __future__ import annotations

import re

import h11

MAX_HEAD_BYTES = 64 * 1024
"""The largest line and headers of a request: tokens of identity providers have some 10 KiB."""
MAX_HEADERS = 100
"""The most headers of one request: browsers behind several proxies send some forty."""

TOO_LARGE = 431
NOT_HTTP = "This is not valid HTTP/1.1."
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_DIGITS = re.compile(rb"[0-9]+")
_VISIBLE = re.compile(rb"[!-~]+")
_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#]*)(?P<path>.*)", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_MAX_SIZE_DIGITS = 16
"""The most digits of a chunk's size in hexadecimal: 64 bits."""
_LINE_END = b"\r\n"

Received = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class RefusedRequest(h11.RemoteProtocolError):
    """A request that is malformed, ambiguous or too large.

    Args:
        detail: One sentence that says why, without quoting the request.
        status: The status of the answer.
    """

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__(detail, status)
        self.status = status


class StrictConnection(h11.Connection):
    """The server's side of a connection, which refuses ambiguous requests."""

    refusal: RefusedRequest | None = None
    """Why a request is refused."""
    _chunks: _Chunks | None = None
    """The chunks of the current request's body, if it is sent in chunks."""

    @property
    def is_within_request(self) -> bool:
        """Whether a part of a request has arrived, but not the rest."""
        is_body = self.their_state is h11.SEND_BODY
        return is_body or (self.their_state is h11.IDLE and bool(self.trailing_data[0]))

    def receive_data(self, data: bytes) -> None:
        """Process received data."""
        super().receive_data(data)
        if self._chunks is not None:
            self._chunks.feed(data)

    def next_event(self) -> Received:
        """Return the next event of the client.

        Raises:
            RefusedRequest: It is malformed, ambiguous or too large.
        """
        try:
            before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
            if self._chunks is not None:
                self._chunks.check()
            event = super().next_event()
            return self._begin(event, before) if isinstance(event, h11.Request) else event
        except RefusedRequest as refusal:
            self.refusal = refusal
            raise
        except h11.RemoteProtocolError as error:
            too_large = error.error_status_hint == TOO_LARGE
            self.refusal = _too_large() if too_large else RefusedRequest(NOT_HTTP)
            raise self.refusal from None

    def _begin(self, request: h11.Request, received: bytes) -> h11.Request:
        """Check the head of a request, and the beginning of its body."""
        request = check_head(request, received)
        self._chunks = None
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            self._chunks = _Chunks()
            self._chunks.feed(self.trailing_data[0])
            self._chunks.check()
        return request


def check_head(request: h11.Request, received: bytes) -> h11.Request:
    """Return a request, its target without scheme and authority.

    Args:
        request: As h11 has parsed it.
        received: The bytes from which it was parsed; bytes after the head are ignored.

    Raises:
        RefusedRequest: Its head is ambiguous or too large.
    """
    end = _END_OF_HEAD.search(received)
    head = received[: end.end()] if end else received
    if len(head) > MAX_HEAD_BYTES:
        raise _too_large()
    _, *lines = head.removesuffix(_LINE_END * 2).split(_LINE_END)
    if len(lines) > MAX_HEADERS:
        raise RefusedRequest(f"The request has more than {MAX_HEADERS} headers.", TOO_LARGE)
    if _CONTROL.search(head.replace(_LINE_END, b"")):
        raise RefusedRequest(
            "The head of the request has a control character, or a line end that is not CR LF."
        )
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise RefusedRequest("A header is continued on a second line.")
    _check_framing(request, lines)
    return _with_path(request)


def _check_framing(request: h11.Request, lines: list[bytes]) -> None:
    """Check that there is one way to find the end of the body."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise RefusedRequest("The service speaks HTTP/1.1.", 505)
    fields = [line.partition(b":") for line in lines]
    lengths = [value.strip() for name, _, value in fields if name.lower() == b"content-length"]
    is_coded = any(name.lower() == b"transfer-encoding" for name, _, _ in fields)
    if is_coded and (lengths or request.http_version == b"1.0"):
        raise RefusedRequest("Transfer-Encoding is given with Content-Length, or in HTTP/1.0.")
    if len(lengths) > 1 or not all(_DIGITS.fullmatch(length) for length in lengths):
        raise RefusedRequest("Content-Length has to be given once, in digits.")


def _with_path(request: h11.Request) -> h11.Request:
    """Return a request for a path, with the Host that its target names."""
    target = request.target
    if absolute := _ABSOLUTE.fullmatch(target):
        hosts = [value.lower() for name, value in request.headers if name == b"host"]
        if hosts != [absolute["authority"].lower()]:
            raise RefusedRequest(
                "The target of the request and its header Host name different hosts."
            )
        target = absolute["path"]
        target = target if target.startswith(b"/") else b"/" + target
    if not target.startswith(b"/") or b"#" in target or not _VISIBLE.fullmatch(target):
        raise RefusedRequest("The target of the request has to be a path.")
    if target == request.target:
        return request
    return h11.Request(
        method=request.method,
        target=target,
        headers=request.headers,
        http_version=request.http_version,
    )


class _Chunks:
    """Follows a chunked body in parallel to h11, which accepts extensions and odd line ends."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data_left = 0
        """The rest of the current chunk."""
        self._needs_line_end = False
        self._is_last = self._is_over = self._is_malformed = False

    def check(self) -> None:
        """Check the data received so far.

        Raises:
            RefusedRequest: It is not in plain chunks.
        """
        if self._is_malformed:
            raise RefusedRequest(
                "The chunks of the body are malformed, or have extensions or trailers."
            )

    def feed(self, data: bytes) -> None:
        """Process the next data; bytes after the body are ignored."""
        self._rest += data
        while self._rest and not self._is_over and not self._is_malformed:
            if self._data_left:
                taken = min(self._data_left, len(self._rest))
                self._data_left -= taken
                del self._rest[:taken]
            elif not (self._take_line_end() if self._needs_line_end else self._take_size()):
                return
        self._rest.clear()

    def _take_line_end(self) -> bool:
        """Process the line end after a chunk; return False while a part of it is missing."""
        found = bytes(self._rest[: len(_LINE_END)])
        if found == _LINE_END:
            del self._rest[: len(found)]
            self._needs_line_end, self._is_over = False, self._is_last
            return True
        self._is_malformed = not _LINE_END.startswith(found)
        return self._is_malformed

    def _take_size(self) -> bool:
        """Process the size of a chunk; return False while a part of it is missing."""
        end = self._rest.find(_LINE_END)
        if end < 0 and len(self._rest) <= _MAX_SIZE_DIGITS + 1:
            return False
        size = bytes(self._rest[:end])
        if not _CHUNK_SIZE.fullmatch(size):
            self._is_malformed = True
            return True
        del self._rest[: end + len(_LINE_END)]
        self._data_left, self._needs_line_end = int(size, 16), True
        self._is_last = not self._data_left
        return True


def _too_large() -> RefusedRequest:
    text = f"The head of the request is longer than {MAX_HEAD_BYTES:,} bytes."
    return RefusedRequest(text, TOO_LARGE)
