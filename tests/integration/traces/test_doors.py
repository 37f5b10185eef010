"""Whoever submits a job, at whichever door: its spans are below the caller's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import grpc.aio
import pytest
from a2a.client import ClientCallContext, ClientConfig, create_client
from a2a.client.client_factory import minimal_agent_card
from a2a.types import Message, Part, Role, SendMessageRequest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from fanout.orchestrator.jobs.trace_context import read_traceparent
from fanout.orchestrator.tracing import spans as tracing
from tests.builders import make_spec
from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, conversation
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.served import ServerProcess, make_key
from tests.services import Installation, Installer, free_port

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

CALLER = "b7ad6b7169203331"
SCRIPT = (conversation("quick", DONE),)
_numbers = count(1)


@dataclass
class Served:
    """A server, a worker, and where their spans go."""

    place: Installation
    server: ServerProcess
    key: str
    grpc_port: int
    collector: OtlpReceiver
    traces: list[str] = field(default_factory=list)

    def caller(self, flags: str = "01") -> str:
        """The context of a caller whose trace is new."""
        trace_id = f"{next(_numbers):032x}"
        self.traces.append(trace_id)
        return f"00-{trace_id}-{CALLER}-{flags}"

    async def spans(self) -> list[ReceivedSpan]:
        """The spans of the trace that was made last, when its job has ended."""
        return await self.collector.connected(self.traces[-1], CALLER)


@pytest.fixture(scope="module")
def served(install_for_module: Installer) -> Iterator[Served]:
    with otlp_receiver() as collector:
        place = install_for_module(*SCRIPT, **collector.environment)
        place.start_worker(concurrency=4)
        key = asyncio.run(make_key(place, "ann"))
        port = free_port()
        server = ServerProcess(place, settings={"FANOUT_API__GRPC_PORT": str(port)})
        server.start()
        yield Served(place, server, key, port, collector)
        server.stop()


async def over_http(served: Served, traceparent: str) -> None:
    async with served.server.client(served.key) as client:
        answer = await client.post(
            "/v1/jobs", json={"description": "quick"}, headers={"traceparent": traceparent}
        )
        answer.raise_for_status()
        job = (await client.get(f"/v1/jobs/{answer.json()['id']}")).json()
        assert job["trace_id"] == traceparent.split("-")[1]


async def over_http_as_a_field(served: Served, traceparent: str) -> None:
    async with served.server.client(served.key) as client:
        body = {"description": "quick", "traceparent": traceparent}
        (await client.post("/v1/jobs", json=body)).raise_for_status()


async def over_mcp(served: Served, traceparent: str) -> None:
    async with served.server.client(served.key) as http:
        transport = streamable_http_client(served.server.url + "/mcp", http_client=http)
        async with Client(transport) as client:
            answer = await client.call_tool(
                "submit_job", {"description": "quick"}, meta={"traceparent": traceparent}
            )
            assert not answer.is_error, answer.content


async def over_a2a(served: Served, traceparent: str) -> None:
    async with served.server.client(served.key) as client:
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": {
                "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "quick"}]}
            },
        }
        headers = {"traceparent": traceparent, "A2A-Version": "1.0"}
        answer = await client.post("/a2a", json=body, headers=headers)
        answer.raise_for_status()
        assert "result" in answer.json(), answer.text


async def over_grpc(served: Served, traceparent: str) -> None:
    card = minimal_agent_card(f"127.0.0.1:{served.grpc_port}", ["GRPC"])
    card.capabilities.streaming = True
    config = ClientConfig(
        grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=["GRPC"]
    )
    context = ClientCallContext(
        service_parameters={
            "authorization": f"Bearer {served.key}",
            "traceparent": traceparent,
        }
    )
    request = SendMessageRequest(
        message=Message(message_id="m2", role=Role.ROLE_USER, parts=[Part(text="quick")])
    )
    async with await create_client(card, config) as client:
        async for _ in client.send_message(request, context=context):
            pass


async def by_command(served: Served, traceparent: str) -> None:
    environment = {**served.place.environment, "TRACEPARENT": traceparent}
    command = [sys.executable, "-m", "fanout", "submit", "quick"]
    ended = await asyncio.to_thread(
        subprocess.run,
        command,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


async def by_library(served: Served, traceparent: str) -> None:
    async with served.place.client() as client:
        with tracing.below(read_traceparent(traceparent)):
            await client.submit(make_spec(description="quick"))


DOORS = {
    over_http: {"fanout-server", "fanout-worker"},
    over_http_as_a_field: {"fanout-worker"},
    over_mcp: {"fanout-server", "fanout-worker"},
    over_a2a: {"fanout-server", "fanout-worker"},
    over_grpc: {"fanout-server", "fanout-worker"},
    by_command: {"fanout", "fanout-worker"},
    by_library: {"fanout-worker"},
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_a_job_is_below_its_caller(
    served: Served, door: Callable[[Served, str], Awaitable[None]]
) -> None:
    await door(served, served.caller())
    spans = await served.spans()

    assert [span for span in spans if span.parent_id == CALLER]
    assert {span.service for span in spans} == DOORS[door]
    assert any(span.name == "submit" for span in spans) or door in (
        over_http_as_a_field,
        by_library,
    )


async def test_a_trace_that_its_caller_does_not_record_is_not_recorded(served: Served) -> None:
    unrecorded = served.caller("00")
    await over_http(served, unrecorded)
    await over_http(served, served.caller())
    await served.spans()

    assert served.collector.of(unrecorded.split("-")[1]) == []


@pytest.mark.parametrize("hostile", ["nonsense", f"00-{'0' * 32}-{CALLER}-01", "0" * 5000])
async def test_a_hostile_context_is_ignored_and_a_trace_begins(
    served: Served, hostile: str
) -> None:
    async with served.server.client(served.key) as client:
        answer = await client.post(
            "/v1/jobs",
            json={"description": "quick", "traceparent": hostile},
            headers={"traceparent": hostile},
        )
        answer.raise_for_status()
        job = (await client.get(f"/v1/jobs/{answer.json()['id']}")).json()
    spans = await served.collector.connected(job["trace_id"])

    assert [span.name for span in spans if not span.parent_id] == ["POST /v1/jobs"]


async def test_a_job_without_any_context_is_one_trace_of_its_own(served: Served) -> None:
    async with served.place.client() as client:
        job_id = await client.submit(make_spec(description="quick"))
        record = await client.get(job_id)
    spans = await served.collector.connected(record.trace_id)

    assert [span.name for span in spans if not span.parent_id] == ["job general-purpose"]
