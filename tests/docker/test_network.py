from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.egress.uplink import Uplink
from fanout.workers.sandbox.protocol import Command, SandboxSpec
from tests.docker import conftest
from tests.docker.conftest import make_sandbox_spec
from tests.docker.test_hardening import run_python
from tests.waits import eventually

pytestmark = conftest.ON_SHARED_PROVIDER
provider = conftest.provider_of_session


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PROBE = """
import json, socket, sys
def probe(target):
    try:
        link = socket.create_connection(("127.0.0.1", 3128), timeout=30)
        link.sendall(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n".encode())
        return int(link.recv(1000).split()[1])
    except OSError as error:
        return type(error).__name__
print(json.dumps([probe(target) for target in sys.argv[1:]]))
"""


def spec_for(*hosts: str) -> SandboxSpec:
    return make_sandbox_spec(
        limits=make_sandbox_spec().limits.model_copy(update={"network": hosts})
    )


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, EOFError):
            await serve(reader, writer)
        writer.close()

    listening = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    yield listening.sockets[0].getsockname()[1]
    listening.close()
    for writer in writers:  # or their sockets would outlive the loop
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


async def probe(sandbox: Any, *targets: str) -> list[int | str]:
    result = await sandbox.run(Command(argv=["python3", "-c", PROBE, *targets]))
    found: list[int | str] = json.loads(result.output)
    return found


@pytest.fixture
def named_here(provider: DockerProvider) -> DockerProvider:
    """A provider for which every name is this machine."""

    async def resolve(_name: str) -> Sequence[str]:
        return ["127.0.0.1"]

    provider._uplink = Uplink(resolve)
    return provider


async def test_programs_find_their_way_to_a_named_host_and_to_no_other(
    named_here: DockerProvider,
) -> None:
    code = """
import sys, urllib.error, urllib.request
for host in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(f"http://{host}/path?query").read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode(), end="")
"""
    async with server(greet) as port:
        spec = spec_for(f"web.example:{port}", f"127.0.0.1:{port}")
        async with named_here.open(spec) as sandbox:
            with capture_logs() as logs:
                hosts = [f"web.example:{port}", "evil.example"]
                result = await sandbox.run(Command(argv=["python3", "-c", code, *hosts]))

        said = result.output.decode().splitlines()
        assert said[0] == "hello"
        assert said[1].startswith(
            "403 evil.example, port 80, is none of the hosts that this job may reach: web"
        )
        assert [(entry["job"], entry["host"]) for entry in logs] == [(spec.job_id, "evil.example")]
        assert "query" not in repr(logs)


async def test_a_package_can_be_installed_from_a_named_index(named_here: DockerProvider) -> None:
    build = """
import zipfile
info = "greeting-1.0.dist-info/"
with zipfile.ZipFile("/tmp/greeting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeting.py", "text = 'hello'")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: greeting\\nVersion: 1.0\\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(info + "RECORD", "")
"""
    package = b""

    async def index(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = b'<a href="/greeting-1.0-py3-none-any.whl">greeting-1.0-py3-none-any.whl</a>'
        if b".whl" in head.split(b"\r\n")[0]:
            body = package
        kind = b"text/html" if body.startswith(b"<") else b"application/octet-stream"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body))
            + body
        )
        await writer.drain()

    async with server(index) as port:
        spec = spec_for(f"index.example:{port}", f"127.0.0.1:{port}")
        async with named_here.open(spec) as sandbox:
            await run_python(sandbox, build)
            package = await sandbox.read_bytes("/tmp/greeting-1.0-py3-none-any.whl")
            index_options = f"-i http://index.example:{port}/simple --trusted-host index.example"
            install = f"pip install -q {index_options} --target /tmp/x greeting"

            result = await sandbox.run(Command(argv=install, timeout_seconds=60))

            assert result.exit_code == 0, result.output.decode()
            greeting = (
                "import sys; sys.path.append('/tmp/x'); import greeting; print(greeting.text)"
            )
            assert await run_python(sandbox, greeting) == "hello"


async def test_nothing_but_the_proxy_is_reached_from_inside(provider: DockerProvider) -> None:
    code = """
import socket, sys
print([name for _, name in socket.if_nameindex()])
server = ("127.0.0.1", int(sys.argv[1]))
for address in (("192.0.2.1", 80), ("169.254.169.254", 80), ("172.17.0.1", 80), server):
    try:
        socket.create_connection(address, timeout=2)
        print("reached", address)
    except OSError:
        pass
try:
    print(socket.getaddrinfo("web.example", 80))
except OSError:
    pass
"""
    async with server(greet) as port, provider.open(spec_for(f"127.0.0.1:{port}")) as sandbox:
        result = await sandbox.run(Command(argv=["python3", "-c", code, str(port)]))

        assert result.output == b"['lo']\n"
        targets = [
            f"127.0.0.1:{port}",
            "169.254.169.254:80",
            "127.0.0.1:22",
            "[::1]:80",
            "2130706433:80",
        ]
        assert await probe(sandbox, *targets) == [200, 403, 403, 403, 400]


async def test_without_a_network_nothing_listens_and_no_variable_names_a_proxy(
    provider: DockerProvider,
) -> None:
    for spec in (make_sandbox_spec(), spec_for()):
        async with provider.open(spec) as sandbox:
            listening = "grep -h ' 0A ' /proc/net/tcp /proc/net/tcp6; env | grep -i proxy"  # LISTEN

            assert (await sandbox.run(Command(argv=listening))).output == b""
            assert await probe(sandbox, "web.example:443") == ["ConnectionRefusedError"]


@pytest.mark.slow
async def test_one_jobs_network_is_no_other_jobs(provider: DockerProvider) -> None:
    async with server(greet) as port, server(greet) as other_port:
        target, other_target = f"127.0.0.1:{port}", f"127.0.0.1:{other_port}"
        async with (
            provider.open(spec_for(target)) as first,
            provider.open(spec_for(other_target)) as second,
            provider.open(make_sandbox_spec()) as third,
        ):
            found = await asyncio.gather(
                *(probe(one, target, other_target) for one in (first, second, third))
            )

        assert found == [[200, 403], [403, 200], ["ConnectionRefusedError"] * 2]


@pytest.mark.slow
async def test_the_next_job_in_a_place_gets_its_own_list(provider: DockerProvider) -> None:
    """Network namespaces are used again; a connection that lingers is not to keep the port."""
    async with server(greet) as port:
        for _ in range(6):
            async with provider.open(spec_for(f"127.0.0.1:{port}")) as sandbox:
                assert await probe(sandbox, f"127.0.0.1:{port}", "127.0.0.1:9") == [200, 403]
            async with provider.open(make_sandbox_spec()) as sandbox:
                assert await probe(sandbox, f"127.0.0.1:{port}") == ["ConnectionRefusedError"]


async def test_the_proxy_outlives_a_command_that_is_killed(provider: DockerProvider) -> None:
    async with server(greet) as port, provider.open(spec_for(f"127.0.0.1:{port}")) as sandbox:
        hanging = "setsid sleep 100 & exec 3<>/dev/tcp/127.0.0.1/3128; sleep 100"
        killed = await sandbox.run(Command(argv=["bash", "-c", hanging], timeout_seconds=1))

        assert killed.timed_out
        assert await probe(sandbox, f"127.0.0.1:{port}") == [200]


async def test_its_connections_end_with_the_sandbox(provider: DockerProvider) -> None:
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
        finally:
            ended.set()

    async with server(hold) as port:
        async with provider.open(spec_for(f"127.0.0.1:{port}")) as sandbox:
            request = f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n"
            connect = f"exec 3<>/dev/tcp/127.0.0.1/3128; printf '{request}' >&3; head -n1 <&3"
            await sandbox.run(Command(argv=["bash", "-c", f"{connect}; (setsid sleep 100 &)"]))
            assert not ended.is_set()

        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_hundred_connections_at_once_are_served(provider: DockerProvider) -> None:
    code = """
import socket, sys
links = [socket.create_connection(("127.0.0.1", 3128), timeout=30) for _ in range(100)]
for link in links:
    link.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
answers = [link.recv(1000).split()[1] for link in links]
for link in links:
    link.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
print(answers.count(b"200"), sum(link.makefile("rb").read().endswith(b"hello") for link in links))
"""
    async with server(greet) as port, provider.open(spec_for(f"127.0.0.1:{port}")) as sandbox:
        result = await sandbox.run(Command(argv=["python3", "-c", code, f"127.0.0.1:{port}"]))

        assert result.output == b"100 100\n"


async def test_traffic_leaves_commands_their_speed(provider: DockerProvider) -> None:
    sent = 0

    async def counted(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    take = """
import socket, sys
link = socket.create_connection(("127.0.0.1", 3128))
link.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
link.recv(1 << 16)
open("begun", "w").close()
while link.recv(1 << 16):
    pass
"""
    async with server(counted) as port, provider.open(spec_for(f"127.0.0.1:{port}")) as sandbox:
        running = asyncio.create_task(
            sandbox.run(
                Command(argv=["python3", "-c", take, f"127.0.0.1:{port}"], timeout_seconds=600)
            )
        )
        await eventually(
            lambda: sandbox.run(Command(argv="test -e begun")), lambda seen: not seen.exit_code
        )
        behind = []
        for _ in range(40):
            before = sent
            await sandbox.read_bytes("/etc/hostname")
            behind.append(sent - before)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        assert sorted(behind)[20] < 8 * conftest.MIB, "of traffic that a command waits for"
        assert sum(behind) > 0


async def test_a_list_that_names_no_host_is_an_invalid_job(provider: DockerProvider) -> None:
    with pytest.raises(InvalidJob, match="network"):
        async with provider.open(spec_for("http://web.example/")):
            pass
