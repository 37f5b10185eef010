"""Strangers who hold connections open, send half requests, or requests that can be read twice."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from fanout.orchestrator.server.strict_http import MAX_HEAD_BYTES, MAX_HEADERS
from tests.fixtures import place_fixture
from tests.served import ServerProcess, make_key
from tests.services import Installation, free_port
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]  # a busy machine starts servers slowly

OF_ADDRESS, IN_ALL = 6, 10
PROXY = "127.0.0.9"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


def head(*lines: bytes, first: bytes = b"POST /login HTTP/1.1") -> bytes:
    """A request's head, for a host that is ours."""
    return b"\r\n".join([first, b"Host: localhost", *lines, b"", b""])


CHUNKED, LENGTH = b"Transfer-Encoding: chunked", b"Content-Length: 4"
AMBIGUOUS = {
    "a length beside chunks": head(LENGTH, CHUNKED) + b"0\r\n\r\n",
    "chunks beside a length": head(CHUNKED, LENGTH) + b"0\r\n\r\n",
    "two lengths": head(LENGTH, b"Content-Length: 5") + b"abcd",
    "the same length twice": head(LENGTH, LENGTH) + b"abcd",
    "a list of lengths": head(b"Content-Length: 4, 4") + b"abcd",
    "a length with a sign": head(b"Content-Length: +4") + b"abcd",
    "no length": head(b"Content-Length:") + b"abcd",
    "two codings": head(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
    "chunks twice": head(CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "an unknown coding": head(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "a vertical tab in a coding": head(b"Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n",
    "chunks in HTTP/1.0": head(CHUNKED, first=b"POST /login HTTP/1.0") + b"0\r\n\r\n",
    "a space before a colon": head(b"Content-Length : 4") + b"abcd",
    "a folded line": head(b"X: a\r\n b") + SMUGGLED,
    "a line without CR": head(b"X: a\nY: b") + SMUGGLED,
    "a head without CR": head().replace(b"\r", b""),
    "a CR alone": head(b"X: a\rContent-Length: 4") + b"abcd",
    "a NUL": head(b"X: a\x00b"),
    "a control character": head(b"X: a\x01b"),
    "a chunk with an extension": head(CHUNKED) + b"1;a=b\r\nx\r\n0\r\n\r\n",
    "an extension with a CR": head(CHUNKED) + b"1;\ra\r\nx\r\n0\r\n\r\n",
    "a chunk's size without CR": head(CHUNKED) + b"1\nx\r\n0\r\n\r\n" + b"x" * 20,
    "a chunk's size as text": head(CHUNKED) + b"0x1\r\nx\r\n0\r\n\r\n",
    "a chunk that goes on": head(CHUNKED) + b"1\r\nxyz\r\n0\r\n\r\n",
    "an end without CR": head(CHUNKED) + b"1\r\nx\r\n0\r\n\n" + SMUGGLED,
    "a trailer": head(CHUNKED) + b"0\r\nContent-Length: 4\r\n\r\n",
    "a method that is none": head(first=b"GE(T / HTTP/1.1"),
    "no path": head(first=b"GET * HTTP/1.1"),
    "a tunnel": head(first=b"CONNECT localhost:80 HTTP/1.1"),
    "a path with spaces": head(first=b"GET /a b HTTP/1.1"),
    "a path of other letters": head(first=b"GET /\xff HTTP/1.1"),
    "a path with a fragment": head(first=b"GET /#a HTTP/1.1"),
    "a target for another host": head(first=b"GET http://evil.example/healthz HTTP/1.1"),
    "a target with a user": head(first=b"GET http://a@localhost/healthz HTTP/1.1"),
    "two hosts": head(b"Host: localhost"),
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
}
TOO_LARGE = {
    "a long head": head(b"X: " + b"a" * MAX_HEAD_BYTES),
    "many headers": head(*[b"X: a"] * MAX_HEADERS),
}
HOSTS = {
    400: (
        "localhost@evil.example", "a:b@localhost", "localhost:0", "localhost:65536", "localhost:x",
        "localhost:1:2", "[::1", "::1", "[::1%25lo]", "[fe80::1%lo]", "127.0.0.1%00.evil.example",
        "%6cocalhost", "l\xf6calhost", "localhost, evil.example", "http://localhost", "localhost/",
    ),
    421: ("", "evil.example", "localhost.evil.example", "127.0.0.2", "127.1", "2130706433",
          "[::ffff:127.0.0.1]", "xn--localhost-xyz", "localhost.."),
    200: ("localhost", "LOCALHOST:1", "localhost.", "localhost:", "127.0.0.1:65535", "[::1]:1",
          "[0:0:0:0:0:0:0:1]"),
}  # fmt: skip


place = place_fixture({}, scope="module")


@pytest.fixture(scope="module")
def server(place: Installation) -> Iterator[ServerProcess]:
    settings = {
        "FANOUT_API__MAX_CONNECTIONS": str(IN_ALL),
        "FANOUT_API__MAX_CONNECTIONS_OF_ADDRESS": str(OF_ADDRESS),
        "FANOUT_API__TRUSTED_PROXIES": f'["{PROXY}"]',
    }
    started = ServerProcess(place, settings=settings)
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def hurried(place: Installation) -> Iterator[ServerProcess]:
    settings = {"HEAD_SECONDS": "1", "STALL_SECONDS": "1", "MIN_BYTES_PER_SECOND": "1000000"}
    settings |= {"GRPC_PORT": str(free_port()), "MAX_CONNECTIONS": "200"}
    named = {f"FANOUT_API__{name}": value for name, value in settings.items()}
    started = ServerProcess(place, "hurried", settings=named)
    started.start()
    yield started
    started.stop()


def port_of(server: ServerProcess) -> int:
    return int(server.url.rpartition(":")[2])


def answers(server: ServerProcess, request: bytes) -> list[int]:
    """The statuses of all that is answered until the server closes the connection."""
    received = b""
    with (
        socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(request)
        while part := connection.recv(65536):
            received += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@contextlib.asynccontextmanager
async def connections(
    server: ServerProcess, number: int, *, source: str = "127.0.0.1"
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections from an address of this machine."""
    opened = [
        await asyncio.open_connection("127.0.0.1", port_of(server), local_addr=(source, 0))
        for _ in range(number)
    ]
    yield opened
    for _, writer in opened:
        writer.transport.abort()


async def counts(server: ServerProcess, key: str) -> dict[str, float]:
    """What the server says of its connections."""
    async with server.client(key) as http:
        text = (await http.get("/metrics")).text
    found = re.findall(
        r'^fanout_http_connections(?:_ended_total\{reason="(\w+)"\})? (\S+)$', text, re.MULTILINE
    )
    return {reason or "open": float(number) for reason, number in found}


@pytest.mark.parametrize("shape", AMBIGUOUS)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    shape: str, server: ServerProcess
):
    assert answers(server, AMBIGUOUS[shape] + SMUGGLED) == [400]


@pytest.mark.parametrize("shape", TOO_LARGE)
def test_a_head_that_is_too_large_is_refused(shape: str, server: ServerProcess):
    assert answers(server, TOO_LARGE[shape] + SMUGGLED) == [431]


def test_requests_one_after_the_other_and_in_plain_chunks_are_answered_each(server: ServerProcess):
    chunked = head(CHUNKED, b"X-A: b") + b"1\r\nx\r\n00A\r\n0123456789\r\n0\r\n\r\n"
    absolute = head(first=b"GET http://LOCALHOST/healthz HTTP/1.1")
    last = head(b"Connection: close", first=b"GET http://localhost?a HTTP/1.1")

    assert answers(server, chunked + absolute + chunked + last) == [403, 200, 403, 200]


@pytest.mark.parametrize(
    ("status", "host"), [(status, host) for status, hosts in HOSTS.items() for host in hosts]
)
def test_a_host_is_one_name_or_address_of_ours(status: int, host: str, server: ServerProcess):
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"

    assert answers(server, request.encode("latin-1")) == [status]


async def test_silent_connections_make_room_for_requests(
    server: ServerProcess, place: Installation
):
    key = await make_key(place, "ann")
    before = await counts(server, key)

    async with connections(server, 50) as silent:
        of_one = await counts(server, key)
        async with connections(server, 20, source="127.0.0.2"):
            of_two = await counts(server, key)
        closed = [not await reader.read() for reader, _ in silent[: 50 - IN_ALL]]

    assert of_one["open"] <= OF_ADDRESS
    assert OF_ADDRESS <= of_two["open"] <= IN_ALL
    assert of_two["replaced"] - before["replaced"] >= 70 - IN_ALL
    assert of_two["refused"] == before["refused"]
    assert all(closed)


async def test_only_where_all_connections_are_at_work_a_new_one_is_refused(
    server: ServerProcess, place: Installation
):
    key = await make_key(place, "bob")
    async with server.client(key) as http:
        job_id = (await http.post("/v1/jobs", json={"description": "x"})).json()["id"]
    streaming = head(
        b"Authorization: Bearer " + key.encode(),
        first=f"GET /v1/jobs/{job_id}/events HTTP/1.1".encode(),
    )

    async def at_work(source: str, number: int) -> list[bytes]:
        """The beginnings of the answers of so many streams, which stay open."""
        streams = await opened.enter_async_context(connections(server, number, source=source))
        for _, writer in streams:
            writer.write(streaming)
        return [await reader.readuntil(b"\r\n\r\n") for reader, _ in streams]

    async with contextlib.AsyncExitStack() as opened:
        of_one = await at_work("127.0.0.1", OF_ADDRESS)
        async with connections(server, 1) as [(reader, _)]:
            refused = await reader.read()
        of_proxy = await at_work(PROXY, IN_ALL - OF_ADDRESS)
        async with connections(server, 1, source="127.0.0.3") as [(reader, _)]:
            elsewhere = await reader.read()

    assert {one.split(b"\r\n")[0] for one in of_one + of_proxy} == {b"HTTP/1.1 200 OK"}
    for answer in (refused, elsewhere):
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: " in answer


async def test_a_proxy_that_is_trusted_may_have_more_connections_than_an_address(
    server: ServerProcess, place: Installation
):
    key = await make_key(place, "proxied")
    async with connections(server, IN_ALL - 1, source=PROXY):
        assert (await counts(server, key))["open"] > OF_ADDRESS


async def _end_of(server: ServerProcess, beginning: bytes, more: bytes = b"") -> tuple[bytes, ...]:
    """The first lines of all answers, when a client sends a beginning and then single bytes."""
    async with connections(server, 1) as [(reader, writer)]:
        writer.write(beginning)
        received = asyncio.create_task(_read_all(reader))
        for number in range(2000):
            done, _ = await asyncio.wait({received}, timeout=0.1)
            if done:
                break
            with contextlib.suppress(ConnectionError):
                writer.write(more and more[number % len(more) :][:1])
        text = await received
    return tuple(re.findall(rb"HTTP/1\.1 (\d{3})", text)) or (b"reset",)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """What has come until the end; a byte that was sent after it resets the connection."""
    text = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            text += piece
    return text


async def test_whoever_is_slow_is_cut_off(hurried: ServerProcess, place: Installation):
    key = (await make_key(place, "slow")).encode()
    unread = head(b"Content-Length: 99999", first=b"POST /v1/jobs HTTP/1.1")
    known = head(
        b"Authorization: Bearer " + key, b"Content-Type: application/json", CHUNKED,
        first=b"POST /v1/jobs HTTP/1.1",
    )  # fmt: skip
    kinds = {
        "says nothing": _end_of(hurried, b""),
        "sends a byte of its head at a time": _end_of(hurried, b"GET / HTTP/1.1\r\n", b"X: aaaa\r\n"),
        "sends half a head after a request": _end_of(
            hurried, head(first=b"GET /healthz HTTP/1.1") + b"GET", b""
        ),
        "sends a body of a byte at a time": _end_of(
            hurried, head(b"Content-Length: 99999", b"Sec-Fetch-Site: same-origin",
                          b"Content-Type: application/x-www-form-urlencoded"), b"x"
        ),
        "sends chunks without an end": _end_of(hurried, known, b"1\r\nx\r\n"),
        "goes on with a body that was refused": _end_of(hurried, unread, b"x"),
    }  # fmt: skip
    ended = dict(zip(kinds, await asyncio.gather(*kinds.values()), strict=True))

    assert ended == {
        "says nothing": (b"408",),
        "sends a byte of its head at a time": (b"408",),
        "sends half a head after a request": (b"200", b"408"),
        "sends a body of a byte at a time": (b"408",),
        "sends chunks without an end": (b"408",),
        "goes on with a body that was refused": (b"401",),
    }


async def test_silent_connections_to_the_port_of_grpc_end(hurried: ServerProcess):
    port = int(hurried.settings["FANOUT_API__GRPC_PORT"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        assert reader.at_eof() or reader.exception()
    finally:
        writer.transport.abort()


async def test_whoever_takes_no_answer_is_cut_off(hurried: ServerProcess, place: Installation):
    key = await make_key(place, "deaf")
    asks = head(b"Authorization: Bearer " + key.encode(), first=b"GET /openapi.json HTTP/1.1")
    before = await counts(hurried, key)

    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port_of(hurried)))
        deaf.sendall(asks * 200)
        now = await eventually(
            lambda: counts(hurried, key), lambda now: now["stalled"] != before["stalled"]
        )

    assert now["stalled"] == before["stalled"] + 1


@pytest.mark.slow
async def test_a_server_without_descriptors_goes_on_when_it_has_some_and_says_it_once(
    place: Installation,
):
    server = ServerProcess(place, "exhausted")
    await asyncio.to_thread(server.start)
    try:
        pid = server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, hard))
        async with connections(server, 30) as waiting:
            for _, writer in waiting:
                writer.write(head(b"Connection: close", first=b"GET /healthz HTTP/1.1"))
            await eventually(lambda: "no more can be accepted" in server.tail())
            await asyncio.sleep(2.5)  # it has tried again
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
            answered = [await reader.read() for reader, _ in waiting]
        log = server.log.read_text()
    finally:
        await asyncio.to_thread(server.stop)

    assert {one.split(b"\r\n")[0] for one in answered} == {b"HTTP/1.1 200 OK"}
    assert log.count("no more can be accepted") == 1
    assert "Traceback" not in log


def test_the_limit_of_descriptors_is_raised_to_the_hard_one():
    code = (
        "import resource as r; from fanout.orchestrator.server.process import *; "
        "_, hard = r.getrlimit(r.RLIMIT_NOFILE); r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); "
        "print(raise_descriptor_limit() == r.getrlimit(r.RLIMIT_NOFILE)[0] == "
        "min(hard, MAX_DESCRIPTORS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
