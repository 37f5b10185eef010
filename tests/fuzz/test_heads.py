"""Heads of HTTP requests, as the proxy of the sandboxes reads and passes them on."""

from __future__ import annotations

import h11
from hypothesis import given
from hypothesis import strategies as st

from fanout.workers.sandbox.egress.exchange import ProxyRequest, Refusal, parse_request
from fanout.workers.sandbox.egress.tls import ClientHello
from fanout.workers.sandbox.egress.uplink import parse_authority
from tests.fuzz.inputs import FUZZ, MARKS, damaged

pytestmark = MARKS

LENGTHS = (("Content-Length", "5"), ("content-length", "6"), ("Content-Length", "0"))
CODINGS = (("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "gzip, chunked"))
BODIES = st.sampled_from((
    *((), LENGTHS[:1], LENGTHS[:1], CODINGS[:1], LENGTHS[:2], (LENGTHS[0], CODINGS[0]), CODINGS),
    *((("Content-Length", value),) for value in ("05", "+5", "5, 5", "-1", "9" * 30, "")),
    *((("Transfer-Encoding", value),) for value in ("xchunked", "CHUNKED", "chunked, identity", "")),
))  # fmt: skip
"""What says where a body ends."""
CONNECTIONS = st.sampled_from((
    "", "close", "keep-alive, x-own", "content-length", "transfer-encoding", "host", "trailer, x-own", "\x80",
)).map(lambda value: (("Connection", value),) if value else ())  # fmt: skip
OTHERS = st.lists(
    st.sampled_from((
        *(("Trailer", "X"), ("Host", "other.example"), ("X-Own", "1"), ("X-Own", "a\tb"), ("TE", "trailers")),
        *(("Proxy-Authorization", "Basic eA=="), ("Upgrade", "h2c")),
        *(("X Bad", "1"), ("", "x"), ("X-Own", "a\0b"), ("X-Own", "a\nb")),
    )),
    max_size=2,
)  # fmt: skip
GOOD = "http://example.org/"
TARGETS = st.sampled_from((
    *(GOOD,) * 20,
    *("http://example.org", "http://example.org:80?x", "http://a@b/", "http://[::1]/x"),
    *("example.org:443", "http://example.org:0/", "http://2130706433/", "http:///x", "/x", "https://a/", "*"),
))  # fmt: skip


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """The head of a request in which few things are wrong at once."""
    method = draw(st.sampled_from(("POST",) * 8 + ("GET", "CONNECT", "get", "G T")))
    version = draw(st.sampled_from(("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/2")))
    separator = draw(st.sampled_from((": ",) * 8 + (":", ":\t", " : ")))
    headers = draw(st.permutations((*draw(BODIES), *draw(CONNECTIONS), *draw(OTHERS))))
    rows = [
        f"{method} {draw(TARGETS)} {version}",
        *(f"{name}{separator}{value}" for name, value in headers),
    ]
    return "".join(f"{row}\r\n" for row in (*rows, "")).encode("latin-1")


PIECES = (
    b"\r\n ",
    b"\n",
    b"\r",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: content-length\r\n",
)


@FUZZ
@given(heads())
def test_a_server_reads_what_the_proxy_has_read_of_a_head(raw: bytes) -> None:
    check(raw)


@FUZZ
@given(damaged("heads", PIECES))
def test_a_server_reads_what_the_proxy_has_read_of_a_damaged_head(raw: bytes) -> None:
    check(raw)


def check(raw: bytes) -> None:
    """Check that a server reads what is passed on as the proxy has read it."""
    try:
        request = parse_request(raw)
    except Refusal:
        return
    assert request.port in range(1, 65536)
    if request.head is None:
        assert raw.startswith(b"CONNECT ")
        return
    seen = request_seen_by_a_server(request)
    names = [bytes(name) for name, _ in seen.headers]
    assert raw.split(b" ", 1)[0] == seen.method
    assert names.count(b"host") == 1
    authority = next(value for name, value in seen.headers if name == b"host").decode("latin-1")
    parsed = parse_authority(authority)
    assert parsed is not None
    assert (parsed[0], parsed[1] or 80) == (request.host, request.port)
    assert [value for name, value in seen.headers if name == b"connection"] == [b"close"]
    assert not {
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"upgrade",
        b"keep-alive",
    } & set(names)
    lengths = [int(value) for name, value in seen.headers if name == b"content-length"]
    codings = [value.lower() for name, value in seen.headers if name == b"transfer-encoding"]
    expected: tuple[list[int], list[bytes]] = ([], [b"chunked"])
    if request.body != "chunked":
        expected = ([request.body], []) if lengths or request.body else ([], [])
    assert (lengths, codings) == expected


def request_seen_by_a_server(request: ProxyRequest) -> h11.Request:
    """Return the request that another library reads from what is passed on."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    assert request.head is not None
    server.receive_data(request.head)
    seen = server.next_event()
    assert isinstance(seen, h11.Request)
    return seen


@FUZZ
@given(
    st.text(max_size=20)
    | st.sampled_from(("[::1]:80", "a:65536", "1.2.3.4:0", "0x7f.1", "[fe80::1%25x]", "a..b", "A."))
)
def test_an_authority_is_a_host_and_a_port_or_nothing(text: str) -> None:
    parsed = parse_authority(text)
    if parsed is None:
        return
    host, port = parsed
    assert port is None or 0 < port < 65536
    assert str(host) == str(host).lower()
    written = f"[{host}]" if ":" in str(host) else str(host)
    assert parse_authority(written) == (host, None)


@FUZZ
@given(st.lists(st.binary(max_size=40), max_size=5), st.booleans())
def test_the_greeting_of_a_client_is_read_or_not(pieces: list[bytes], is_tls: bool) -> None:
    hello = ClientHello()
    if is_tls:
        pieces = [b"\x16\x03\x01", *pieces]
    for piece in pieces:
        if hello.feed(piece):
            break
    assert hello.name is None or isinstance(hello.name, str)
