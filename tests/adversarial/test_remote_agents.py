"""A hostile service attacks the worker that calls it as a remote agent."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from a2a.types import Message, Part, Role
from pydantic import SecretStr

from fanout.orchestrator.configuration.agent_definitions import RemoteAgentDefinition
from fanout.orchestrator.configuration.credentials import HeaderCredential
from fanout.orchestrator.extras import connect_agent
from fanout.orchestrator.jobs.failures import AgentFailed, InvalidJob, RemoteAgentUnavailable
from fanout.workers.extras.remote_agents.messages import workspace_path

URL = "https://agent.example"
KEY = SecretStr("canary-key-0017")
CREDENTIALS = (HeaderCredential(secret="REMOTE_KEY"),)
CARD = {
    "name": "remote",
    "description": "It lies.",
    "version": "1",
    "skills": [],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "capabilities": {"streaming": True},
    "supportedInterfaces": [
        {"url": f"{URL}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}
Handler = Callable[[httpx.Request], httpx.Response]


class Service:
    """Answers as told, and keeps what it was sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[httpx.Request] = []
        self.card: httpx.Response = httpx.Response(200, json=CARD)
        self.answer: Handler = lambda _: httpx.Response(200, json=rpc({}))
        monkeypatch.setattr(httpx, "AsyncHTTPTransport", lambda: httpx.MockTransport(self._handle))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.card if request.method == "GET" else self.answer(request)

    async def task(self, **options: Any) -> None:
        definition = RemoteAgentDefinition(url=URL, credentials=CREDENTIALS, **options)
        async with connect_agent(definition, {"REMOTE_KEY": KEY}) as remote:
            await remote.task("t1")

    async def send(self) -> int:
        """Send a message and count the updates that come back."""
        message = Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(text="hello")])
        definition = RemoteAgentDefinition(url=URL, credentials=CREDENTIALS, max_bytes=20_000)
        async with connect_agent(definition, {"REMOTE_KEY": KEY}) as remote:
            return len([update async for update in remote.send(message, 5)])


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def rpc(result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "1", "result": result}


def event(text: str) -> bytes:
    status = {"state": "TASK_STATE_WORKING", "message": {"messageId": "m", "role": "ROLE_AGENT"}}
    status["message"] = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}
    update = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}}
    return f"data: {json.dumps(rpc(update))}\n\n".encode()


def received(content: bytes) -> httpx.Response:
    """An answer that has still to be read, as from a network."""
    return httpx.Response(200, stream=httpx.ByteStream(content))


def streamed(chunks: AsyncIterator[bytes]) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=chunks)


@pytest.mark.parametrize(
    "address",
    [
        "https://thief.example/rpc",
        "http://agent.example/rpc",
        "https://agent.example:8443/rpc",
        "https://agent.example@thief.example/rpc",
        "https://agent.example.thief.example/rpc",
        "file:///etc/passwd",
        "",
    ],
)
async def test_a_card_does_not_lead_the_key_to_another_origin(service, address):
    interface = {**CARD["supportedInterfaces"][0], "url": address}
    service.card = httpx.Response(200, json={**CARD, "supportedInterfaces": [interface]})

    with pytest.raises(InvalidJob, match=r"a2a\.url"):
        await service.task()
    assert {request.url.host for request in service.requests} == {"agent.example"}


async def test_an_interface_of_another_origin_is_not_used_beside_its_own(service):
    thief = {**CARD["supportedInterfaces"][0], "url": "https://thief.example/rpc"}
    both = [thief, *CARD["supportedInterfaces"]]
    service.card = httpx.Response(200, json={**CARD, "supportedInterfaces": both})

    await service.task()

    assert {request.url.host for request in service.requests} == {"agent.example"}


@pytest.mark.parametrize("what", ["card", "answer"])
async def test_a_redirect_is_not_followed(service, what):
    moved = httpx.Response(307, headers={"location": "https://thief.example/"})
    if what == "card":
        service.card = moved
    service.answer = lambda _: moved

    with pytest.raises(InvalidJob, match="redirects"):
        await service.task()
    assert {request.url.host for request in service.requests} == {"agent.example"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (received(json.dumps(rpc({"id": "x" * 30_000})).encode()), "max_bytes"),
        (received(b"[" * 400_000), "values"),
        (received(b"[" * 100_000), "not A2A"),
        (received(b"\xff\xfe"), "not A2A|wrongly"),
        (httpx.Response(200, json=[1, 2]), "wrongly"),
        (httpx.Response(200, json=rpc(7)), "not A2A|wrongly"),
        (httpx.Response(200, json=rpc({"id": 7, "status": "up"})), "not A2A|wrongly"),
        (received(b'{"jsonrpc": "2.0", "result": {"id": "\\ud800"}}'), "not A2A|wrongly"),
        (httpx.Response(404), "HTTP 404"),
        (
            httpx.Response(
                200, headers={"content-encoding": "gzip"}, content=gzip.compress(b" " * 10**6)
            ),
            "compressed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_answer_that_is_no_answer_fails_the_job_without_its_text(service, answer, problem):
    service.answer = lambda _: answer
    limit = 10_000_000 if "values" in problem or "not A2A" in problem else 20_000

    with pytest.raises(AgentFailed, match=problem) as failed:
        await service.task(max_bytes=limit)
    assert "xxx" not in str(failed.value)


async def test_an_error_text_of_the_service_is_not_quoted(service):
    error = {"code": -32005, "message": "canary-error-text"}
    service.answer = lambda _: httpx.Response(200, json={"jsonrpc": "2.0", "error": error})

    with pytest.raises(AgentFailed) as failed:
        await service.task()
    assert "canary" not in str(failed.value)


@pytest.mark.parametrize(("status", "failure"), [(401, InvalidJob), (503, RemoteAgentUnavailable)])
async def test_a_refusal_names_no_key(service, status, failure):
    service.answer = lambda request: httpx.Response(status, text=f"{request.headers}")

    with pytest.raises(failure) as failed:
        await service.task()
    assert KEY.get_secret_value() not in str(failed.value)


async def test_an_endless_stream_ends(service):
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield event("y" * 10_000)

    service.answer = lambda _: streamed(endless())

    with pytest.raises(AgentFailed, match="32 times"):
        await service.send()
    assert sent < 100


async def test_an_endless_line_ends(service):
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"data: " + b"z" * 5_000

    service.answer = lambda _: streamed(endless())

    with pytest.raises(AgentFailed, match="at once"):
        await service.send()


async def test_many_events_below_the_bound_are_no_attack(service):
    async def long() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield event("w" * 5_000)

    service.answer = lambda _: streamed(long())

    assert await service.send() == 20


@pytest.mark.parametrize(
    "name",
    [
        "../x", "/etc/passwd", "a/../../x", "a/./b", "a//b", ".git/hooks/pre-commit", "sub/.GIT/config",
        "", "/", "a\0b", "a\nb", "..", "a/", "..\\x", "C:\\x", "x" * 1_001, "/workspace/../x", "/workspace/",
    ],
)  # fmt: skip
def test_a_path_outside_of_the_workspace_is_refused(name):
    with pytest.raises(AgentFailed, match="not one of the workspace"):
        workspace_path(name)


@pytest.mark.parametrize(
    "name", ["a.txt", "sub/b.txt", "/workspace/c.txt", ".gitignore", "ü/é.txt"]
)
def test_a_path_of_the_workspace_is_taken(name):
    assert workspace_path(name) == "/workspace/" + name.removeprefix("/workspace/")
