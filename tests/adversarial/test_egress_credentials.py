"""Attacks on the credentials that the proxy puts in: to see them, misdirect them, go round them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import ModelUsage
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.attempt.credentials import proxy_credentials
from fanout.workers.sandbox import ConnectionRecord, Credential, TrafficRecord
from fanout.workers.sandbox.egress.traffic import Traffic
from fanout.workers.sandbox.egress.uplink import Uplink
from fanout.workers.sandbox.model_meter import ModelMeter
from tests.egress import (
    Inside,
    Link,
    Names,
    Open,
    Server,
    http_status,
    mirror_head,
    sandboxes,
    write_code,
)
from tests.https_host import HttpsHost, PrivateAuthority
from tests.model_service import INPUT_TOKENS, OUTPUT_TOKENS, Model, answer_to
from tests.waits import eventually

CANARY = "canary-4f1d0c-token"
NAME = "GIT_TOKEN"
HOST = "git.example"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return write_code(tmp_path / "code")


@pytest.fixture
def authority(tmp_path: Path) -> PrivateAuthority:
    return PrivateAuthority(tmp_path / "authority")


@pytest.fixture
def context(authority: PrivateAuthority) -> ssl.SSLContext:
    return authority.context(HOST)


@pytest.fixture
async def open_sandbox(code: Path) -> AsyncIterator[Open]:
    async with sandboxes(code) as open_one:
        yield open_one


def credential(host: str, **fields: Any) -> Credential:
    definition = AgentDefinition.model_validate(
        {
            "name": "pusher", "description": "pushes", "instruction": "Push.", "network": [host],
            "credentials": [{"host": host, "secret": "GIT_TOKEN", **fields}],
        }
    )  # fmt: skip
    (made,) = proxy_credentials(
        definition.name, definition.credentials, {"GIT_TOKEN": SecretStr(CANARY)}
    )
    return made


OpenWith = Callable[..., Awaitable[Inside]]


@pytest.fixture
def open_with(open_sandbox: Open, authority: PrivateAuthority) -> OpenWith:
    """Open a sandbox with a credential for a server on this machine, by the name of a host."""

    async def open_one(
        port: int, records: list[TrafficRecord] | None = None, *,
        ca_file: Path | None = authority.ca_file, limit_bytes: int | None = None,
        meter: ModelMeter | None = None, **fields: Any,
    ) -> Inside:  # fmt: skip
        names = Names(git_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
        traffic = Traffic((records if records is not None else []).append, limit_bytes=limit_bytes)
        return await open_sandbox(
            *(f"{HOST}:{port}", f"other.example:{port}", f"127.0.0.1:{port}"),
            uplink=Uplink(names, ca_file=ca_file),
            traffic=traffic,
            credentials=[credential(f"{HOST}:{port}", **fields)],
            meter=meter,
        )

    return open_one


def trusting(inside: Inside) -> ssl.SSLContext:
    """The context of a job's client: it trusts the sandbox's authority."""
    assert inside.proxy.authority is not None
    context = ssl.create_default_context(cadata=inside.proxy.authority.certificate.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


async def connect(inside: Inside, port: int, *, sni: str = HOST, tls: Any = None) -> Link:
    reader, writer = await inside.tunnel(f"{HOST}:{port}")
    await writer.start_tls(tls or trusting(inside), server_hostname=sni)
    return reader, writer


async def ask(inside: Inside, port: int, request: str, body: bytes = b"") -> bytes:
    """The answer to one request; its Host is the right one unless it has another."""
    reader, writer = await connect(inside, port)
    if "\r\nHost:" not in request:
        first, _, rest = request.partition("\r\n")
        request = f"{first}\r\nHost: {HOST}:{port}\r\n{rest}"
    writer.write(request.encode("latin-1") + b"\r\n" + body)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


GET = "GET /a?b HTTP/1.1\r\nConnection: close\r\n"


# What is put in


@pytest.mark.parametrize(
    ("fields", "header"),
    [
        ({}, f"authorization: Bearer {CANARY}"),
        (
            {"scheme": "basic"},
            "authorization: Basic eC1hY2Nlc3MtdG9rZW46Y2FuYXJ5LTRmMWQwYy10b2tlbg==",
        ),
        ({"scheme": "raw", "header": "X-Api-Key"}, f"x-api-key: {CANARY}"),
    ],
)
async def test_the_host_receives_the_credential_and_the_sandbox_does_not(
    open_with: OpenWith, context: ssl.SSLContext, fields: dict[str, str], header: str
) -> None:
    records: list[TrafficRecord] = []
    async with HttpsHost(context) as host:
        inside = await open_with(host.port, records, **fields)
        with capture_logs() as logs:
            answer = await ask(inside, host.port, GET)

        assert answer.endswith(b"\r\n\r\nhello ")
        assert header in host.heads[0].decode().replace("Authorization", "authorization").replace(
            "X-Api-Key", "x-api-key"
        )
        assert host.heads[0].startswith(b"GET /a?b HTTP/1.1\r\n")
        assert CANARY not in repr((records, logs, inside.proxy.__dict__)) + answer.decode()


async def test_a_header_of_the_jobs_own_is_replaced(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        await ask(
            inside,
            host.port,
            GET + "authorization: Bearer mine\r\nAUTHORIZATION: Basic mine\r\nX-Mine: kept\r\n",
        )

        head = host.heads[0].lower()
        assert head.count(b"authorization:") == 1
        assert b"bearer mine" not in head
        assert b"x-mine: kept" in head


async def test_bodies_stream_in_both_directions_and_their_bytes_are_recorded(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    records: list[TrafficRecord] = []
    body = b"x" * 3_000_000
    async with HttpsHost(context) as host:
        inside = await open_with(host.port, records)

        post = f"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        answer = await ask(inside, host.port, post, body)

        assert answer.partition(b"\r\n\r\n")[2] == b"hello " + body
        assert host.bodies == [body]
        await eventually(lambda: records)
    (record,) = records
    assert isinstance(record, ConnectionRecord)
    assert record.secret == NAME
    assert record.sent_bytes > len(body) < record.received_bytes


async def test_a_models_answer_is_metered_while_it_streams_and_its_bytes_are_the_same(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    answer = answer_to("/v1/messages", {"model": "m", "messages": []}, Model())
    assert answer is not None
    body, kind = answer
    begun, rest = body[:200], body[200:]
    goes_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await host.read_request(reader)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + begun)
        await goes_on.wait()
        writer.write(rest)
        await writer.drain()

    meter = ModelMeter()
    async with HttpsHost(context, stream) as host:
        inside = await open_with(host.port, meter=meter)
        reader, writer = await connect(inside, host.port)
        writer.write(f"POST /v1/messages HTTP/1.1\r\nHost: {HOST}:{host.port}\r\n".encode())
        writer.write(b"Accept-Encoding: gzip, br\r\nContent-Length: 2\r\n\r\n{}")
        async with asyncio.timeout(60):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(begun)) == begun
            goes_on.set()
            assert await reader.readexactly(len(rest)) == rest
        writer.close()
        await eventually(lambda: meter.total().model_calls)

    assert meter.total() == ModelUsage(
        model_calls=1, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS
    )


async def test_a_connection_carries_several_requests_and_each_has_its_own_upstream(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)
        reader, writer = await connect(inside, host.port)
        for number in range(3):
            head = f"POST /{number} HTTP/1.1\r\nHost: {HOST}:{host.port}\r\nTransfer-Encoding: chunked\r\n"
            writer.write(head.encode() + b"\r\n3\r\nabc\r\n0\r\n\r\n")
            answer = await reader.readuntil(b"hello abc")
            assert answer.startswith(b"HTTP/1.1 200 ")

        assert host.bodies == [b"abc"] * 3
        assert all(b"Authorization: Bearer canary" in head for head in host.heads)
        writer.close()


async def test_expect_100_continue_is_answered_at_the_proxy(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)
        reader, writer = await connect(inside, host.port)
        head = f"POST / HTTP/1.1\r\nHost: {HOST}:{host.port}\r\nContent-Length: 3\r\n"
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())

        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"abc")
        assert (await reader.readuntil(b"hello abc")).startswith(b"HTTP/1.1 200 ")
        writer.close()


# To another host


async def test_it_is_never_put_into_a_plain_request(
    open_with: OpenWith,
) -> None:
    async with Server(mirror_head) as server:
        inside = await open_with(server.port)

        answer = await inside.ask(f"GET http://{HOST}:{server.port}/ HTTP/1.1\r\n\r\n".encode())

    assert http_status(answer) == 200
    assert b"authorization" not in answer.lower()


@pytest.mark.parametrize("name", ["other.example", "evil.example", "git.example.evil.example"])
async def test_a_handshake_for_another_name_fails(
    open_with: OpenWith, context: ssl.SSLContext, name: str
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(inside, host.port, sni=name, tls=unverified)

        assert host.heads == []


@pytest.mark.parametrize(
    "header",
    [
        "Host: other.example", "Host: git.example", "Host: git.example:{port}@other.example",
        "Host: other.example\r\nHost: git.example:{port}",
        "Host: git.example:{port}\r\nHost: other.example", "Host: git.example:1",
        "Host: ", "Host: git.example:{port}, other.example", "Host : git.example:{port}",
    ],
)  # fmt: skip
async def test_a_request_for_another_host_on_its_connection_is_refused(
    open_with: OpenWith, context: ssl.SSLContext, header: str
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        answer = await ask(
            inside, host.port, f"GET / HTTP/1.1\r\n{header.format(port=host.port)}\r\n"
        )

        assert http_status(answer) in {400, 421}
        assert host.heads == []


@pytest.mark.parametrize(
    "target", ["https://other.example/", "http://git.example/", "other.example:443", "*", "/a#b"]
)
async def test_absolute_and_other_forms_of_targets_are_refused(
    open_with: OpenWith, context: ssl.SSLContext, target: str
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        assert http_status(await ask(inside, host.port, f"GET {target} HTTP/1.1\r\n")) == 400
        assert http_status(await ask(inside, host.port, f"CONNECT {target} HTTP/1.1\r\n")) == 400
        assert host.heads == []


async def test_a_host_without_a_valid_certificate_gets_nothing(
    open_with: OpenWith, authority: PrivateAuthority, tmp_path: Path
) -> None:
    impostor = PrivateAuthority(tmp_path / "impostor").context(HOST)
    for other in (impostor, authority.context("other.example")):
        async with HttpsHost(other) as host:
            inside = await open_with(host.port)

            answer = await ask(inside, host.port, GET)

            assert http_status(answer) == 502
            assert b"has no valid certificate" in answer
            assert host.heads == []


async def test_the_authority_of_one_sandbox_is_not_trusted_in_another(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        first, second = await open_with(host.port), await open_with(host.port)

        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(first, host.port, tls=trusting(second))


async def test_the_authority_can_vouch_for_its_hosts_only(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)
        made = inside.proxy.authority
        assert made is not None
        forged = await asyncio.to_thread(made._make_context, "other.example")

        async with HttpsHost(forged) as impostor:
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(
                    "127.0.0.1",
                    impostor.port,
                    ssl=trusting(inside),
                    server_hostname="other.example",
                )


async def test_a_redirect_is_left_to_the_client(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 302 Found\r\nLocation: https://other.example/\r\nContent-Length: 0\r\n\r\n"
        )

    async with HttpsHost(context, redirect) as host:
        inside = await open_with(host.port)

        answer = await ask(inside, host.port, GET)

        assert http_status(answer) == 302
        assert b"https://other.example/" in answer


# Past the limits of a credential


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /team/a.git/info/refs?service=git-upload-pack", 200),
        ("GET /team/b.git/info/refs", 403),
        ("DELETE /team/a.git/info/refs", 403),
        ("GET /team/a.git/../b.git/info/refs", 403),
        ("GET /team/a.git/%2e%2e/b.git/info/refs", 403),
        ("GET /team/a.git/..%2fb.git/info/refs", 403),
        ("GET /team/a.git/..\\b.git/info/refs", 403),
        ("GET /team/a.git//b", 403),
        ("GET /other?x=/team/a.git/", 403),
        ("get /team/a.git/info/refs", 403),
    ],
)
async def test_only_the_permitted_methods_and_paths_pass(
    open_with: OpenWith, context: ssl.SSLContext, request_line: str, status: int
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port, methods=["GET", "POST"], paths=["/team/a.git/*"])

        answer = await ask(inside, host.port, f"{request_line} HTTP/1.1\r\nConnection: close\r\n")

        assert http_status(answer) == status
        assert len(host.heads) == (status == 200)


# Smuggling and wearing out


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked", b"0\r\n\r\nGET /x HTTP/1.1\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4", b"0\r\n\r\n"),
        ("Content-Length: 4\r\nContent-Length: 5", b"abcde"),
        ("Content-Length: +4", b"abcd"),
        ("Transfer-Encoding: gzip, chunked", b"0\r\n\r\n"),
        ("Transfer-Encoding: xchunked", b"0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        ("Transfer-Encoding : chunked", b"0\r\n\r\n"),
        ("X: a\nContent-Length: 4\r\nContent-Length: 7", b"abcd"),
    ],
)
async def test_a_request_whose_end_is_not_clear_is_refused(
    open_with: OpenWith, context: ssl.SSLContext, headers: str, body: bytes
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        answer = await ask(inside, host.port, f"POST / HTTP/1.1\r\n{headers}\r\n", body)

        assert http_status(answer) in {400, 501}
        assert host.heads == []


async def test_a_request_behind_another_one_is_parsed_as_one_of_its_own(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port, paths=["/permitted"])

        smuggled = f"GET /forbidden HTTP/1.1\r\nHost: {HOST}:{host.port}\r\n\r\n".encode()
        answer = await ask(
            inside,
            host.port,
            "POST /permitted HTTP/1.1\r\nContent-Length: 3\r\n",
            b"abc" + smuggled,
        )

        assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 403 ") == 1
        assert host.bodies == [b"abc"]


async def test_a_broken_chunk_breaks_the_request_off(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        with pytest.raises((ConnectionError, ssl.SSLError)):
            await ask(
                inside, host.port, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"zz\r\nabc"
            )

        assert host.bodies == []


async def test_oversized_headers_are_refused(open_with: OpenWith, context: ssl.SSLContext) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        answer = await ask(inside, host.port, f"GET / HTTP/1.1\r\nX: {'x' * 40_000}\r\n")

        assert http_status(answer) == 431
        assert host.heads == []


async def test_a_client_that_is_slow_to_ask_is_cut_off(
    open_with: OpenWith, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.workers.sandbox.egress.exchange.HEAD_SECONDS", 0.5)
    monkeypatch.setattr("fanout.workers.sandbox.egress.proxy.HEAD_SECONDS", 0.5)
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)
        silent, kept = await inside.tunnel(f"{HOST}:{host.port}")
        reader, writer = await connect(inside, host.port)
        async with asyncio.timeout(60):
            for _ in range(8):
                writer.write(b"G")
                await asyncio.sleep(0.1)
            assert http_status(await reader.read()) == 408
            with pytest.raises(ConnectionResetError):
                await silent.read()
        kept.close()


async def test_what_is_not_tls_is_cut_off(open_with: OpenWith, context: ssl.SSLContext) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)
        reader, writer = await inside.tunnel(f"{HOST}:{host.port}")
        writer.write(b"GET / HTTP/1.1\r\nHost: git.example\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await read_to_end(reader)

        assert host.heads == []


async def read_to_end(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(60):
        while await reader.read(1 << 16):
            pass


async def test_the_budget_counts_what_is_inside_of_tls(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port, limit_bytes=100_000)

        with pytest.raises((ConnectionError, ssl.SSLError)):
            await ask(
                inside,
                host.port,
                "POST / HTTP/1.1\r\nContent-Length: 3000000\r\n",
                bytes(3_000_000),
            )

        assert host.bodies == []
        assert "network_bytes" in str(inside.proxy.traffic.exceeded)


@pytest.mark.slow
async def test_a_hundred_parallel_connections_are_served(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        answers = await asyncio.gather(*(ask(inside, host.port, GET) for _ in range(100)))

        assert {http_status(answer) for answer in answers} == {200}
        assert len(host.heads) == 100


# To have it sent back


@pytest.mark.parametrize("scheme", ["bearer", "basic", "raw"])
@pytest.mark.parametrize("framing", ["length", "chunks", "end"])
async def test_an_answer_that_repeats_the_credential_arrives_without_it(
    open_with: OpenWith, context: ssl.SSLContext, scheme: str, framing: str
) -> None:
    async def reflect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        value = next(line for line in head.split(b"\r\n") if line.startswith(b"Authorization: "))
        body = head + CANARY.encode() + b" the end"
        start = b"HTTP/1.1 200 OK\r\nX-Echo: %s\r\nSet-Cookie: session=1\r\n" % value
        if framing == "length":
            writer.write(start + b"Content-Length: %d\r\n\r\n" % len(body))
            for byte in body:  # across every boundary
                writer.write(bytes([byte]))
                await writer.drain()
        elif framing == "chunks":
            writer.write(start + b"Transfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 7):
                part = body[at : at + 7]
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(start + b"\r\n" + body)

    async with HttpsHost(context, reflect) as host:
        inside = await open_with(host.port, scheme=scheme)

        answer = await ask(inside, host.port, GET)

        assert http_status(answer) == 200
        assert answer.endswith(b" the end" if framing == "length" else b"\r\n0\r\n\r\n")
        assert CANARY.encode() not in answer
        assert b"Y2FuYXJ5" not in answer
        assert b"set-cookie" not in answer.lower()
        assert b"***" in answer


async def test_a_compressed_answer_is_not_asked_for(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    async with HttpsHost(context) as host:
        inside = await open_with(host.port)

        await ask(inside, host.port, GET + "Accept-Encoding: gzip, br\r\n")

        assert host.heads[0].lower().count(b"accept-encoding: identity") == 1
        assert b"gzip" not in host.heads[0]


async def test_an_events_stream_is_not_held_back(
    open_with: OpenWith, context: ssl.SSLContext
) -> None:
    more = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n")
        await more.wait()

    async with HttpsHost(context, stream) as host:
        inside = await open_with(host.port)
        reader, writer = await connect(inside, host.port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}:{host.port}\r\n\r\n".encode())
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"data: 1")).startswith(b"HTTP/1.1 200 ")
        more.set()
        writer.close()


# In definitions and settings


def test_a_secret_that_the_worker_does_not_have_is_named() -> None:
    definition = AgentDefinition.model_validate(
        {
            "name": "pusher", "description": "pushes", "instruction": "Push.", "network": [HOST],
            "credentials": [{"host": HOST, "secret": "REDIS_URL"}],
        }
    )  # fmt: skip

    with pytest.raises(InvalidJob, match="FANOUT_SECRETS__REDIS_URL") as raised:
        proxy_credentials(definition.name, definition.credentials, {"GIT_TOKEN": SecretStr(CANARY)})

    assert CANARY not in str(raised.value)
    assert raised.value.retryable is False
