"""Agents of another service for tests: the SDK's A2A server with an executor that does as told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import uvicorn
from a2a.helpers import get_message_text, new_data_part, new_raw_part, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.services import free_port

START_SECONDS = 60.0
PATCH = b"""\
--- a/notes.txt
+++ b/notes.txt
@@ -1 +1,2 @@
 one
+two
"""


@dataclass
class RemoteService:
    """A running service, and what it was told."""

    url: str = ""
    messages: list[Message] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    """Lets what is slow go on."""

    changed: threading.Condition = field(default_factory=threading.Condition)

    def await_cancelled(self, task_id: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: task_id in self.cancelled, START_SECONDS)

    async def released(self) -> None:
        while not await asyncio.to_thread(self.release.wait, 0.05):
            pass


class Scripted(AgentExecutor):
    """Does what the first word of a message says."""

    def __init__(self, service: RemoteService) -> None:
        self._service = service

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        self._service.messages.append(message)
        text = get_message_text(message)
        if text == "greet":
            await event_queue.enqueue_event(new_text_message("Hello.", role=Role.ROLE_AGENT))
            return
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            task = Task(id=context.task_id, context_id=context.context_id, status=status)
            await event_queue.enqueue_event(task)
        await updater.start_work()
        await self._work(updater, message, text)

    async def _work(self, updater: TaskUpdater, message: Message, text: str) -> None:
        word, *others = text.split()
        rest = " ".join(others)
        if word == "ask":
            question = updater.new_agent_message([Part(text="Which colour?")])
            await updater.requires_input(question)
            return
        if word == "confirm":
            call = {"id": "call-7", "name": "adk_request_confirmation", "args": {"what": "pay"}}
            question = updater.new_agent_message([Part(text="May I?"), new_data_part(call)])
            await updater.requires_input(question)
            return
        if word == "link":
            urls = f"{self._service.url}/files/linked.txt", "http://127.0.0.1:9/other.txt"
            links = [Part(url=url, filename=url.rpartition("/")[2]) for url in urls]
            await updater.add_artifact(links, name="result")
        if word == "fail":
            await updater.failed(updater.new_agent_message([Part(text="I could not.")]))
            return
        if word == "slow":
            progress = updater.new_agent_message([Part(text="Thinking hard.")])
            await updater.start_work(progress)
            await self._service.released()
        if word == "files":
            raw = {part.filename: part.raw for part in message.parts if part.filename}
            changed = [
                new_raw_part(content.upper(), filename=name) for name, content in raw.items()
            ]
            created = new_raw_part(b"\x00\x01", filename="new/made.bin")
            patch = Part(raw=PATCH, filename="fix.diff", media_type="text/x-diff")
            kept = [part for part in changed if part.filename != "notes.txt"]
            await updater.add_artifact([*kept, created, patch], name="result")
        if word == "write":
            await updater.add_artifact([new_raw_part(b"owned", filename=rest)], name="result")
        if word == "measure":
            await updater.add_artifact([new_data_part({"lines": 3})], name="answer")
        if word == "flood":
            await updater.add_artifact([Part(text="x" * int(rest))], name="answer")
        await updater.add_artifact([Part(text=f"Did: {text}")], name="answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        with self._service.changed:
            self._service.cancelled.append(context.task_id)
            self._service.changed.notify_all()
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


@contextmanager
def remote_service(
    *,
    binding: str = "JSONRPC",
    version: str = "1.0",
    streaming: bool = True,
    key: str = "",
    port: int = 0,
) -> Iterator[RemoteService]:
    """A service on the loopback, in a thread of this process.

    Args:
        binding: JSONRPC or HTTP+JSON.
        version: Of the protocol, as its card says.
        streaming: Whether it streams.
        key: Is expected as a bearer token of each request.
        port: Where it listens; 0: on any free one.
    """
    port = port or free_port()
    service = RemoteService(url=f"http://127.0.0.1:{port}")
    card = AgentCard(
        name="remote",
        description="Does as told.",
        version="1",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="do", name="do", description="Does it.", tags=["test"])],
        capabilities=AgentCapabilities(streaming=streaming),
        supported_interfaces=[
            AgentInterface(url=service.url, protocol_binding=binding, protocol_version=version)
        ],
    )
    handler = DefaultRequestHandler(
        agent_executor=Scripted(service), task_store=InMemoryTaskStore(), agent_card=card
    )

    async def linked(_: Request) -> Response:
        return PlainTextResponse("[linked]," * 50_000)

    routes = [
        Route("/files/linked.txt", linked),
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler),
    ]
    started = threading.Event()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        started.set()
        yield

    async def check(request: Request, call_next: RequestResponseEndpoint) -> Response:
        service.keys.append(request.headers.get("authorization", ""))
        if key and service.keys[-1] != f"Bearer {key}":
            return PlainTextResponse("who are you?", status_code=401)
        return await call_next(request)

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=check)],
    )
    with serving(app, port):
        assert started.wait(START_SECONDS)
        yield service
        service.release.set()


@contextmanager
def serving(app: Starlette, port: int) -> Iterator[None]:
    """Serve an application in a thread, on a port of the loopback."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(START_SECONDS)
