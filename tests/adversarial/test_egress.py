"""Attacks on the way out: what a job may try to reach more, send more, or fill the journal."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanout.workers.sandbox.egress.traffic import Traffic
from fanout.workers.sandbox.protocol import ConnectionRecord, NetworkLimitReached, TrafficRecord
from tests.egress import (
    Inside,
    Names,
    Open,
    Server,
    echo,
    http_status,
    mirror_head,
    sandboxes,
    write_code,
)
from tests.waits import eventually


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return write_code(tmp_path)


@pytest.fixture
async def open_sandbox(code: Path) -> AsyncIterator[Open]:
    async with sandboxes(code) as open_one:
        yield open_one


class Records(list[TrafficRecord]):
    """What a proxy reported."""

    @property
    def connections(self) -> list[ConnectionRecord]:
        return [record for record in self if isinstance(record, ConnectionRecord)]

    @property
    def limits(self) -> list[NetworkLimitReached]:
        return [record for record in self if isinstance(record, NetworkLimitReached)]


async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(1 << 15))
        await writer.drain()


async def read_into(received: bytearray, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(1 << 16):
        received += data


async def until_recorded(records: Records, count: int) -> None:
    await eventually(lambda: len(records.connections) >= count)


# What is recorded


async def test_an_allowed_connection_is_recorded_with_its_bytes_and_without_what_was_asked(
    open_sandbox: Open,
) -> None:
    records = Records()
    async with Server(mirror_head) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}", traffic=Traffic(records.append))
        answer = await inside.ask(
            f"GET http://127.0.0.1:{server.port}/hidden-path?hidden-query HTTP/1.1\r\n"
            "Authorization: hidden-header\r\n\r\n".encode()
        )
        await until_recorded(records, 1)

    (record,) = records.connections
    assert (record.host, record.port, record.is_allowed) == ("127.0.0.1", server.port, True)
    assert record.received_bytes == len(answer)
    assert record.sent_bytes == len(answer.partition(b"\r\n\r\n")[2])
    assert record.seconds >= 0
    assert "hidden" not in repr(record)


async def test_a_refused_connection_is_recorded_with_the_reason(open_sandbox: Open) -> None:
    records = Records()
    inside = await open_sandbox(
        "web.example", names=Names(web_example=[["10.0.0.1"]]), traffic=Traffic(records.append)
    )

    await inside.ask(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
    await inside.ask(b"CONNECT web.example:443 HTTP/1.1\r\n\r\n")
    await inside.ask(b"nonsense\r\n\r\n")

    assert [(r.host, r.port, r.is_allowed) for r in records.connections] == [
        ("evil.example", 443, False),
        ("web.example", 443, False),
        ("", 0, False),
    ]
    assert "is none of the hosts" in records.connections[0].reason
    assert "private or special" in records.connections[1].reason


# The budget


async def test_a_download_beyond_the_budget_is_cut_and_later_requests_are_told_the_limit(
    open_sandbox: Open,
) -> None:
    records = Records()
    async with Server(pour) as server:
        target = f"127.0.0.1:{server.port}"
        inside = await open_sandbox(target, traffic=Traffic(records.append, limit_bytes=1_000_000))
        reader, _ = await inside.tunnel(target)
        received = bytearray()
        with pytest.raises(ConnectionResetError):
            await read_into(received, reader)
        refused = await inside.ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())

    assert len(received) < 1_000_000
    assert http_status(refused) == 403
    assert b"network_bytes, over all attempts) is 1,000,000 bytes" in refused
    (limit,) = records.limits
    assert limit.limit_bytes == 1_000_000 <= limit.used_bytes < 1_100_000
    assert "network_bytes" in records.connections[0].reason
    assert records.connections[1].is_allowed is False


async def test_an_upload_beyond_the_budget_is_cut(open_sandbox: Open) -> None:
    got = 0

    async def take(reader: asyncio.StreamReader, _writer: Any) -> None:
        nonlocal got
        while data := await reader.read(1 << 16):
            got += len(data)

    async with Server(take) as server:
        target = f"127.0.0.1:{server.port}"
        inside = await open_sandbox(target, traffic=Traffic(limit_bytes=500_000))
        reader, writer = await inside.tunnel(target)
        with pytest.raises(ConnectionError):
            await pour(reader, writer)

    assert 0 < got <= 500_000


async def test_connections_share_the_budget_and_all_of_them_are_cut(open_sandbox: Open) -> None:
    async def first_pours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"p":
            await pour(reader, writer)
        await reader.read()

    async with Server(first_pours) as server:
        target = f"127.0.0.1:{server.port}"
        inside = await open_sandbox(target, traffic=Traffic(limit_bytes=200_000))
        quiet = [await inside.tunnel(target) for _ in range(5)]
        for _, writer in quiet:
            writer.write(b"q")
        reader, writer = await inside.tunnel(target)
        writer.write(b"p")
        with pytest.raises(ConnectionResetError):
            await read_into(bytearray(), reader)

        async with asyncio.timeout(60):
            for reader, _ in quiet:
                with pytest.raises(ConnectionResetError):
                    await reader.read()


async def test_what_earlier_attempts_used_counts(open_sandbox: Open) -> None:
    async with Server(echo) as server:
        target = f"127.0.0.1:{server.port}"
        inside = await open_sandbox(target, traffic=Traffic(limit_bytes=2000, used_bytes=2000))

        refused = await inside.ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())

    assert (http_status(refused), server.connections) == (403, 0)


async def test_an_idle_connection_is_closed(open_sandbox: Open) -> None:
    records = Records()
    async with Server(echo) as server:
        target = f"127.0.0.1:{server.port}"
        traffic = Traffic(records.append, idle_seconds=0.4)
        inside = await open_sandbox(target, traffic=traffic)
        reader, writer = await inside.tunnel(target)
        for _ in range(6):  # longer than the limit, but not idle
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            await asyncio.sleep(0.1)

        async with asyncio.timeout(60):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        await until_recorded(records, 1)

    assert records.connections[0].reason == "idle for 0.4 s"


# Another host through a tunnel


async def greet_through(inside: Inside, port: int, name: str | None) -> bytes:
    """What the server got of a TLS client that asks for a name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    hello = outgoing.read()
    reader, writer = await inside.tunnel(f"web.example:{port}")
    for at in range(0, len(hello), 100):
        writer.write(hello[at : at + 100])
        await writer.drain()
    writer.write_eof()
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        await read_into(received, reader)
    writer.close()
    return bytes(received).removeprefix(hello)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("web.example", True),
        ("WEB.example", True),
        (None, True),
        ("other.example", True),  # is on the list, too
        ("evil.example", False),
        ("web.example.evil.example", False),
        ("evil.web.example", False),
    ],
)
async def test_a_tunnels_tls_handshake_names_a_host_that_is_allowed(
    open_sandbox: Open, name: str | None, passes: bool
) -> None:
    records = Records()
    got = bytearray()

    async def take(reader: asyncio.StreamReader, _writer: Any) -> None:
        await read_into(got, reader)

    async with Server(take) as server:
        inside = await open_sandbox(
            *(f"web.example:{server.port}", f"other.example:{server.port}"),
            f"127.0.0.1:{server.port}",
            names=Names(web_example=[["127.0.0.1"]]),
            traffic=Traffic(records.append),
        )

        answer = await greet_through(inside, server.port, name)
        await until_recorded(records, 1)

    if passes:
        assert got.startswith(b"\x16")
        assert records.connections[0].reason == ""
    else:
        assert got == b""
        assert answer.endswith(b"\x02\x70")  # fatal: unrecognized name
        assert "names another host" in records.connections[0].reason


async def test_what_only_begins_like_a_handshake_is_cut(open_sandbox: Open) -> None:
    got = bytearray()

    async def take(reader: asyncio.StreamReader, _writer: Any) -> None:
        await read_into(got, reader)

    async with Server(take) as server:
        target = f"127.0.0.1:{server.port}"
        inside = await open_sandbox(target)
        reader, writer = await inside.tunnel(target)
        writer.write(b"\x16\x03\x01\x00\x05" + b"a" * 1000)

        with pytest.raises(ConnectionResetError):
            await read_into(bytearray(), reader)

    assert got == b""
