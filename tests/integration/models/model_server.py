"""A loopback server that speaks as much of four model services' interfaces as a deep agent uses."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.integration.models.wires import Answer, Wire, call, call_with, text, wire_of
from tests.loopback import LoopbackHandler, loopback_server

__all__ = ["Answer", "ModelServer", "call", "call_with", "environment", "model_server", "text"]

CACHES = "/v1beta/cachedContents"


@dataclass
class ModelServer:
    """The answers to give, in order, and the requests that came."""

    url: str
    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of what models were asked."""
    keys: list[str] = field(default_factory=list)
    """The keys that requests to Gemini came with."""
    paths: list[str] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    """When, in seconds since the epoch."""
    caches: list[dict[str, Any]] = field(default_factory=list)
    """What Gemini was asked to keep."""
    cache_status: int = 200
    closing: threading.Event = field(default_factory=threading.Event)


def environment(server: ModelServer, key: str) -> dict[str, str]:
    """The variables that send every provider's client to this server."""
    return {
        "GOOGLE_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": server.url,
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": server.url,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


@contextmanager
def model_server(answers: Sequence[Answer] = ()) -> Iterator[ModelServer]:
    """Serve these answers on a port of 127.0.0.1."""
    with loopback_server(Handler, lambda url: ModelServer(url, list(answers))) as state:
        try:
            yield state
        finally:
            state.closing.set()


class Handler(LoopbackHandler):
    def post(self) -> None:
        request = self.read_json()
        if self.path.startswith(CACHES):
            self._keep(request)
            return
        self.state.arrived.append(time.time())
        self.state.requests.append(request)
        self.state.paths.append(self.path)
        if key := self.headers.get("x-goog-api-key"):
            self.state.keys.append(key)
        answers = self.state.answers
        answer = answers.pop(0) if answers else Answer(status=400, body="no answer is left")
        wire = wire_of(self.path)
        stream = wire.is_stream(self.path, request)
        if answer.body is None and answer.status == 200 and not answer.is_too_long and stream:
            self._stream(wire, answer)
            return
        if answer.hangs:
            self.state.closing.wait()
            return
        headers = {"content-type": answer.media_type, **answer.headers}
        self._send(*_whole(wire, answer), headers=headers)

    def get(self) -> None:
        self.send_json(404, {"error": {"type": "not_found_error", "message": self.path}})

    def delete(self) -> None:
        self.send_json(200, {})

    def _keep(self, request: dict[str, Any]) -> None:
        self.state.caches.append(request)
        name = f"cachedContents/{len(self.state.caches)}"
        self.send_json(self.state.cache_status, {"name": name, "model": request.get("model")})

    def _stream(self, wire: Wire, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        events = [wire.sse(event) for event in wire.streamed(answer)]
        if answer.breaks_off:
            events = [events[0], wire.sse(wire.overload)]
        for event in events:
            self.wfile.write(event.encode())
            self.wfile.flush()
            if answer.hangs:
                self.state.closing.wait()
                return

    def _send(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


def _whole(wire: Wire, answer: Answer) -> tuple[int, str]:
    if answer.is_too_long:
        return 400, json.dumps(wire.too_long)
    if answer.body is not None:
        return answer.status, answer.body
    found = wire.whole(answer) if answer.status == 200 else wire.refusal(answer.status)
    return answer.status, json.dumps(found)
