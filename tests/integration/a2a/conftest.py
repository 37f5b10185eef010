"""A server of the service, a worker with a scripted model, and clients of the protocol."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.types import Message, Part, Role, SendMessageRequest, StreamResponse

from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, conversation, says, shell
from tests.integration.worker.approvals import GUARDED
from tests.integration.worker.children import delegates
from tests.services import START_SECONDS, Installation, Installer, free_port

SCRIPT = (
    conversation(
        "^write",
        shell("echo one > notes.txt"),
        says("It is written.\n\n## Summary\nWritten."),
        shell("cat notes.txt > seen.txt"),
        DONE,
    ),
    conversation("^guarded", shell("echo ok > ok.txt"), DONE, DONE),
    conversation("^lead", delegates("guarded task", agent="guarded"), DONE, DONE),
    conversation("^see", shell("find docs -type f"), DONE),
    conversation("^wait", shell("sleep 60"), DONE),
    conversation("^fail", {"raise": "the key is sk-SECRET123"}),
)
LEAD = """
name: lead
description: Delegates.
instruction: Do it.
subagents: [guarded]
"""
KEYS = {"ann": "a" * 32, "bob": "b" * 32}
SCOPES = ["submit", "read", "approve"]


@dataclass
class Server:
    """`fanout serve` as a process."""

    place: Installation
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    url: str = ""
    grpc_port: int = field(default_factory=free_port)
    lines: list[str] = field(default_factory=list)

    def start(self) -> None:
        keys = {name: {"key": key, "scopes": SCOPES} for name, key in KEYS.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fanout", "serve", "--port", "0"],
            env={
                **self.place.environment,
                "FANOUT_API__KEYS": json.dumps(keys),
                "FANOUT_NOTIFICATIONS__ALLOWED_HOSTS": '["127.0.0.1"]',
                "FANOUT_API__GRPC_PORT": str(self.grpc_port),
                **self.environment,
            },
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        listening = threading.Event()
        threading.Thread(target=self._read, args=(listening,), daemon=True).start()
        assert listening.wait(START_SECONDS), "it does not listen"
        assert self.url, "".join(self.lines)

    def _read(self, listening: threading.Event) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"serves at (http://\S+)", line)
            if found:
                self.url = found.group(1)
                listening.set()
        listening.set()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)

    @asynccontextmanager
    async def client(self, name: str = "ann", binding: str = "JSONRPC") -> AsyncIterator[Client]:
        """A client of the SDK, by the server's card."""
        async with httpx.AsyncClient(headers=headers(name), timeout=60) as http:
            config = ClientConfig(
                httpx_client=http,
                supported_protocol_bindings=[binding],
                use_client_preference=True,
            )
            yield await create_client(self.url, config)


def headers(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def message(text: str, *parts: Part, **fields: Any) -> SendMessageRequest:
    """A request with a message of its own id."""
    metadata = fields.pop("metadata", {})
    made = Message(
        message_id=fields.pop("message_id", uuid4().hex),
        role=Role.ROLE_USER,
        parts=[*([Part(text=text)] if text else []), *parts],
        **fields,
    )
    made.metadata.update(metadata)
    return SendMessageRequest(message=made)


def last_state(seen: list[StreamResponse]) -> int:
    """The state with which a stream ended, which may have come with its first item."""
    last = seen[-1]
    return (last.task if last.HasField("task") else last.status_update).status.state


async def events(stream: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [one async for one in stream]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One for all: a worker and a server take seconds to start."""
    folder = tmp_path_factory.mktemp("a2a")
    agents = folder / "agents"
    agents.mkdir()
    (agents / "guarded.yaml").write_text(GUARDED)
    (agents / "lead.yaml").write_text(LEAD)
    with ExitStack() as opened:
        made = Installer(folder, opened)(*SCRIPT, FANOUT_AGENTS_DIR=str(agents))
        made.start_worker()
        yield made


@pytest.fixture(scope="session")
def server(place: Installation) -> Iterator[Server]:
    made = Server(place)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def other_server(place: Installation) -> Iterator[Server]:
    """One more, which a test may kill."""
    made = Server(place)
    made.start()
    yield made
    made.kill()
