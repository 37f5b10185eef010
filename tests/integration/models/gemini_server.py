"""A loopback server that speaks as much of Gemini's REST interface as a deep agent uses."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One HTTP answer; the parts of a stream come as one event each."""

    parts: Sequence[dict[str, Any]] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent as it is in place of the parts."""
    finish_reason: str = "STOP"


@dataclass
class GeminiServer:
    """The answers to give, in order, and the requests that came."""

    url: str
    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


def text(words: str) -> dict[str, Any]:
    return {"text": words}


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


@contextmanager
def gemini_server(answers: Sequence[Answer]) -> Iterator[GeminiServer]:
    """Serve these answers on a port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            state.requests.append(json.loads(self.rfile.read(size)))
            state.paths.append(self.path)
            answer = state.answers.pop(0) if state.answers else Answer(status=400, body="no answer is left")
            stream = "streamGenerateContent" in self.path
            body = answer.body if answer.body is not None else _body(answer, stream=stream)
            self.send_response(answer.status)
            self.send_header("content-type", "text/event-stream" if stream else "application/json")
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = GeminiServer(url=f"http://127.0.0.1:{server.server_port}", answers=list(answers))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _body(answer: Answer, *, stream: bool) -> str:
    if answer.status != 200:
        return json.dumps({"error": {"code": answer.status, "message": "not now", "status": "UNAVAILABLE"}})
    if not stream:
        return json.dumps(_chunk(answer.parts, answer.finish_reason))
    chunks = [_chunk([part], None) for part in answer.parts[:-1]]
    chunks.append(_chunk(answer.parts[-1:], answer.finish_reason))
    return "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)


def _chunk(parts: Sequence[dict[str, Any]], finish_reason: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish_reason:
        candidate["finishReason"] = finish_reason
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash-001"}
