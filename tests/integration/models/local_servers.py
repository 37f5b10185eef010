"""Loopback servers that speak as local model servers do, with their oddities."""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.loopback import LoopbackHandler, loopback_server

NAME = "qwen3:8b"
LLAMA_CPP_MODELS = {
    "models": [{"name": NAME, "model": NAME, "capabilities": ["completion"]}],
    "object": "list",
    "data": [{"id": NAME, "object": "model", "meta": {"vocab_type": 2, "n_ctx_train": 8192}}],
}
VLLM_MODELS = {
    "object": "list",
    "data": [{"id": NAME, "object": "model", "max_model_len": 4096, "permission": [{"id": "x"}]}],
}
LM_STUDIO_MODELS = {"data": [{"id": NAME}, {"id": "text-embedding-nomic"}], "object": "list"}
OLLAMA_TAGS = {"models": [{"name": NAME, "model": NAME, "details": {"family": "qwen3"}}]}
OPENAI_MODELS = {"object": "list", "data": [{"id": NAME, "object": "model", "owned_by": "library"}]}
PAGE = "<!doctype html><title>A router</title>"


@dataclass
class Kind:
    """How a server behaves."""

    models: Any = field(default_factory=lambda: OPENAI_MODELS)
    """What `GET /v1/models` answers; None: 404."""
    prefix: str = "/v1"
    """Where its interface is."""
    refuses_tools: tuple[int, str] | None = None
    """The status and the message."""
    refuses_streams: tuple[int, str] | None = None
    ignores_streams: bool = False
    key: str | None = None
    """The only key that it takes; empty: any. None: it looks at none."""
    is_page: bool = False
    """Every answer is a web page."""
    has_tags: bool = False
    """It has Ollama's own interface, too."""
    calls_tools: bool = True


KINDS = {
    "ollama": Kind(
        has_tags=True,
    ),
    "llama.cpp": Kind(models=LLAMA_CPP_MODELS),
    "vllm": Kind(models=VLLM_MODELS),
    "lm studio": Kind(models=LM_STUDIO_MODELS),
    "old ollama": Kind(models=None, has_tags=True),
    "without /v1": Kind(prefix=""),
    "any key": Kind(key=""),
}


@dataclass
class LocalServer:
    url: str
    kind: Kind
    requests: list[dict[str, Any]] = field(default_factory=list)


def local_server(kind: Kind) -> AbstractContextManager[LocalServer]:
    return loopback_server(_Handler, lambda url: LocalServer(url, kind))


class _Handler(LoopbackHandler):
    @property
    def kind(self) -> Kind:
        return self.state.kind

    def get(self) -> None:
        if self._refused():
            return
        if self.path == f"{self.kind.prefix}/models" and self.kind.models is not None:
            self.send_json(200, self.kind.models)
        elif self.path == "/api/tags" and self.kind.has_tags:
            self.send_json(200, OLLAMA_TAGS)
        else:
            self.send(404, b"404 page not found", "text/plain")

    def post(self) -> None:
        request = self.read_json()
        self.state.requests.append(request)
        if self._refused():
            return
        if self.path == "/api/chat" and self.kind.has_tags:
            self._ollama(request)
            return
        if self.path != f"{self.kind.prefix}/chat/completions":
            self.send(404, b"404 page not found", "text/plain")
            return
        for refused, wanted in (
            (self.kind.refuses_tools, request.get("tools")),
            (self.kind.refuses_streams, request.get("stream")),
        ):
            if refused and wanted:
                self.send_json(refused[0], {"error": {"message": refused[1], "type": "api_error"}})
                return
        calls = bool(request.get("tools")) and self.kind.calls_tools
        if request.get("stream") and not self.kind.ignores_streams:
            self._stream(calls=calls, request=request)
        else:
            message = {"role": "assistant", **_reply(request, calls=calls)}
            self.send_json(200, _completion({"message": message}, calls=calls))

    def _refused(self) -> bool:
        if self.kind.is_page:
            self.send(200, PAGE.encode(), "text/html")
            return True
        given = (self.headers.get("authorization") or "").removeprefix("Bearer ").strip()
        wanted = self.kind.key
        if wanted is not None and (not given or wanted not in {"", given}):
            self.send_json(401, {"error": {"message": "Invalid key", "code": 401}})
            return True
        return False

    def _ollama(self, request: dict[str, Any]) -> None:
        message = {"role": "assistant", "content": "I am ready."}
        if request.get("tools") and self.kind.calls_tools:
            name = request["tools"][0]["function"]["name"]
            message = {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": name, "arguments": {}}}],
            }
        end = {"model": NAME, "created_at": "2026-01-01T00:00:00Z", "message": message,
               "done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 3}  # fmt: skip
        self.send(200, (json.dumps(end) + "\n").encode(), "application/x-ndjson")

    def _stream(self, *, calls: bool, request: dict[str, Any]) -> None:
        delta = _reply(request, calls=calls)
        for index, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = index
        chunks = [
            _completion({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
            _completion({"delta": delta, "finish_reason": None}),
            _completion({"delta": {}}, calls=calls),
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send(200, body.encode(), "text/event-stream")


def _reply(request: dict[str, Any], *, calls: bool) -> dict[str, Any]:
    if not calls:
        return {"content": "I am ready."}
    name = request["tools"][0]["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"content": None, "tool_calls": [call]}


def _completion(choice: dict[str, Any], *, calls: bool = False) -> dict[str, Any]:
    ended = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", **choice}
    kind = "chat.completion.chunk" if "delta" in choice else "chat.completion"
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {"id": "x", "object": kind, "created": 1, "model": NAME, "choices": [ended],
            "usage": usage}  # fmt: skip
