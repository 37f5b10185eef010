"""One caller's share of a server process: requests a minute, open streams."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message

from fanout.orchestrator.configuration.api_settings import ApiSettings, Scope
from fanout.orchestrator.server.access.callers import Caller
from fanout.orchestrator.server.access.limits import CallerLimits


async def test_a_caller_who_asks_too_often_waits_and_others_do_not(site):
    here = site(requests_per_minute=3)
    ann, bob = await here.key("ann"), await here.key("bob")

    async def ask(key: str) -> Any:
        return await here.http.get("/v1/jobs", headers={"X-API-Key": key})

    answers = [await ask(ann) for _ in range(5)]
    other = await ask(bob)

    assert [one.status_code for one in answers] == [200, 200, 200, 429, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
    assert "?wait=" in answers[-1].json()["detail"]
    assert other.status_code == 200


class Streams:
    """Streams that stay open until they are told to end."""

    def __init__(self, **settings: int) -> None:
        self.app = CallerLimits(self._stream, ApiSettings(**settings))
        self.end = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def _stream(self, _scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": x", "more_body": True})
        await self.end.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def open(self, name: str) -> int:
        """The status of one more stream."""
        caller = Caller(name, name, "default", frozenset(Scope))
        begun: asyncio.Queue[int] = asyncio.Queue()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.put_nowait(message["status"])

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {}}
        scope["state"] = {"caller": caller}
        self.tasks.append(asyncio.create_task(self.app(scope, receive, send)))
        return await begun.get()


async def test_requests_that_wait_for_an_answer_are_bounded_for_each_caller():
    end = asyncio.Event()
    answers: list[int] = []

    async def waiting(_scope: Any, _receive: Any, send: Any) -> None:
        await end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    app = CallerLimits(waiting, ApiSettings(max_streams_of_caller=2))

    async def ask(name: str) -> None:
        caller = Caller(name, name, "default", frozenset(Scope))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        await app({**scope, "state": {"caller": caller}}, receive, send)

    tasks = [asyncio.create_task(ask(name)) for name in ("ann", "ann", "ann", "bob")]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    refused = list(answers)
    end.set()
    await asyncio.gather(*tasks)
    await ask("ann")

    assert refused == [429]
    assert answers == [429, 200, 200, 200, 200]


async def test_open_streams_are_bounded_for_each_caller_and_for_the_process():
    streams = Streams(max_streams=3, max_streams_of_caller=2)

    opened = [await streams.open(name) for name in ("ann", "ann", "ann", "bob", "bob")]
    streams.end.set()
    await asyncio.gather(*streams.tasks)
    again = await streams.open("ann")
    await asyncio.gather(*streams.tasks)

    assert opened == [200, 200, 429, 200, 503]
    assert again == 200
