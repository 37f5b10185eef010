"""A loopback server of all wires that answers by the last message of a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.integration.models.wires import Answer, wire_of
from tests.loopback import LoopbackHandler, loopback_server

Rules = Sequence[tuple[str, Sequence[dict[str, Any]]]]
"""What is in the last message -> the parts of the reply; the first that fits."""

MESSAGES = ("messages", "contents", "input")
"""The keys of the messages, by wire."""


@dataclass
class AnsweringServer:
    url: str
    rules: Rules
    model: str = ""
    """The model that the agents ask for."""
    bodies: list[str] = field(default_factory=list)
    """The requests, as they came."""
    held: str | None = None
    """A request whose last message has this is held until `may_go`, without an answer."""
    may_go: threading.Event = field(default_factory=threading.Event)

    def asked(self, words: str) -> list[dict[str, Any]]:
        """The requests whose last message has these words."""
        requests = [json.loads(body) for body in self.bodies]
        return [one for one in requests if words in json.dumps(messages(one)[-1])]


def messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    return next(request[name] for name in MESSAGES if name in request)


@contextmanager
def answering_server(*rules: tuple[str, Sequence[dict[str, Any]]]) -> Iterator[AnsweringServer]:
    """Serve on a port of 127.0.0.1."""
    with loopback_server(_Handler, lambda url: AnsweringServer(url, rules)) as state:
        try:
            yield state
        finally:
            state.may_go.set()


class _Handler(LoopbackHandler):
    def post(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        request, state, wire = json.loads(body), self.state, wire_of(self.path)
        state.bodies.append(body)
        last = json.dumps(messages(request)[-1])
        if state.held and state.held in last and not state.may_go.is_set():
            state.may_go.wait()
            return
        fitting = (parts for words, parts in state.rules if words in last)
        parts = next(fitting, None)
        if parts is None:
            self.send_json(400, wire.refusal(400))
            return
        answer = Answer(parts=parts)
        if not wire.is_stream(self.path, request):
            self.send_json(200, wire.whole(answer))
            return
        events = "".join(map(wire.sse, wire.events(answer)))
        self.send(200, events.encode(), "text/event-stream")
