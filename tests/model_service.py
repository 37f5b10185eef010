"""A model service for real coding agents: four wire formats, streamed, with a script in its prompt.

The model does what the lines `RUN: COMMAND` of all prompts of a conversation say, one call of the
agent's shell tool each, and then says what the last line `SAY: TEXT` says. So it holds no state: it
continues a conversation that was loaded again, and a check whose output has such a line gets its
rework. `USAGE` is what each answer costs.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.loopback import LoopbackHandler

INPUT_TOKENS, OUTPUT_TOKENS = 1000, 50
"""What each answer costs."""
SAID = "All is done."
SHELLS = ("bash", "Bash", "run_shell_command", "exec_command", "shell_command", "shell")
"""The agents' names of the tool that runs a command."""
_RUN = re.compile(r"^\W*RUN: (.+?)\s*$", re.MULTILINE)
_SAY = re.compile(r"^\W*SAY: (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A call of the agent's shell tool."""

    number: int
    tool: str
    arguments: Mapping[str, Any]


@dataclass
class Model:
    """What the model was asked."""

    requests: list[tuple[str, Mapping[str, str], Any]] = field(default_factory=list)
    """The path, the headers in lower case, and the body of each request."""
    unknown: list[str] = field(default_factory=list)
    """The requests that are not answered."""

    def next(self, offered: Sequence[Any], conversation: Sequence[str | None]) -> Call | str:
        """Return the reply.

        Args:
            offered: The tools, as pairs of a name and the schema of its arguments.
            conversation: The texts of the user, and None for each result of a call.
        """
        said, wanted, begun = SAID, list[str](), list[str]()
        for text in conversation:
            if text is None:
                begun += wanted[:1]
                del wanted[:1]
                continue
            said = (_SAY.findall(text) or [said])[-1]
            wanted += [
                one for one in dict.fromkeys(_RUN.findall(text)) if one not in wanted + begun
            ]
            wanted = [one for one in begun if _is_approved(one, text)] + wanted
        tools = dict(offered)
        shell = next((name for name in SHELLS if name in tools), None)
        if shell is None or not wanted:
            return said
        return Call(len(conversation), shell, _arguments(tools[shell], wanted[0]))


def _is_approved(command: str, text: str) -> bool:
    """Whether a person has approved a call that was broken off when the agent asked."""
    spelled = json.dumps(command)[1:-1]
    return any(spelled in line for line in text.splitlines() if "approved: " in line)


def _arguments(schema: Mapping[str, Any], command: str) -> dict[str, Any]:
    known = schema.get("properties", {})
    name = "cmd" if "cmd" in known else "command"
    of_list = known.get(name, {}).get("type") == "array"
    arguments = {name: ["bash", "-c", command] if of_list else command}
    if "description" in known:
        arguments["description"] = "A step"
    if "yield_time_ms" in known:
        arguments["yield_time_ms"] = 30_000
    return arguments


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_texts(part) for part in content)
    if isinstance(content, dict):
        return _texts(content.get("text", ""))
    return ""


def _events(*events: Mapping[str, Any], named: bool = True) -> bytes:
    return "".join(
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ).encode()


def _responses(model: Model, asked: Mapping[str, Any]) -> bytes:
    """OpenAI's Responses."""
    offered = [
        (tool["name"], tool.get("parameters") or {})
        for tool in asked.get("tools", ())
        if "name" in tool
    ]
    items = asked.get("input", ())
    conversation = [
        None if item.get("type") == "function_call_output" else _texts(item.get("content"))
        for item in items
        if item.get("type") == "function_call_output" or item.get("role") == "user"
    ]
    reply = model.next(offered, conversation)
    if isinstance(reply, Call):
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{reply.number}",
            "call_id": f"call_{reply.number}",
            "name": reply.tool,
            "arguments": json.dumps(reply.arguments),
        }
    else:
        part = {"type": "output_text", "text": reply, "annotations": []}
        item = {"type": "message", "id": "msg", "role": "assistant", "content": [part]}
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    done = {"id": "resp", "model": asked.get("model"), "output": [item], "usage": usage}
    return _events(
        {"type": "response.created", "response": {"id": "resp"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    )


def _chat(model: Model, asked: Mapping[str, Any]) -> bytes:
    """OpenAI's chat completions."""
    offered = [
        (tool["function"]["name"], tool["function"].get("parameters") or {})
        for tool in asked.get("tools", ())
    ]
    messages = asked["messages"]
    conversation = [
        None if one["role"] == "tool" else _texts(one["content"])
        for one in messages
        if one["role"] in {"tool", "user"}
    ]
    reply = model.next(offered, conversation)
    if isinstance(reply, Call):
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        call = {"index": 0, "id": f"call_{reply.number}", "type": "function", "function": function}
        delta, reason = {"role": "assistant", "tool_calls": [call]}, "tool_calls"
    else:
        delta, reason = {"role": "assistant", "content": reply}, "stop"
    base = {"id": "chat", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    chunks = (
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    )
    return _events(*chunks, named=False) + b"data: [DONE]\n\n"


def _messages(model: Model, asked: Mapping[str, Any]) -> bytes:
    """Anthropic's messages."""
    offered = [
        (tool["name"], tool.get("input_schema") or {})
        for tool in asked.get("tools", ())
        if "name" in tool
    ]
    conversation: list[str | None] = []
    for message in asked["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "user":
            kinds = ("tool_result", "text")
            told = sorted(
                (block for block in blocks if block.get("type") in kinds),
                key=lambda block: kinds.index(block["type"]),
            )
            conversation += [block.get("text") for block in told]
    reply = model.next(offered, conversation)
    if isinstance(reply, Call):
        begun = {"type": "tool_use", "id": f"toolu_{reply.number}", "name": reply.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(reply.arguments)}
        reason = "tool_use"
    else:
        begun, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": reply}
        reason = "end_turn"
    message = {
        "id": f"msg_{len(conversation)}", "type": "message", "role": "assistant",
        "model": asked["model"], "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": 1},
    }  # fmt: skip
    return _events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": OUTPUT_TOKENS},
        },
        {"type": "message_stop"},
    )


def _generated(model: Model, asked: Mapping[str, Any]) -> dict[str, Any]:
    offered = [
        (one["name"], one.get("parametersJsonSchema") or one.get("parameters") or {})
        for tool in asked.get("tools", ())
        for one in tool.get("functionDeclarations", ())
    ]
    parts = [
        (content.get("role"), part)
        for content in asked["contents"]
        for part in content.get("parts", ())
    ]
    conversation = [
        None if "functionResponse" in part else part["text"]
        for role, part in parts
        if "functionResponse" in part or (role == "user" and "text" in part)
    ]
    reply = model.next(offered, conversation)
    part: dict[str, Any] = (
        {"functionCall": {"name": reply.tool, "args": reply.arguments}}
        if isinstance(reply, Call)
        else {"text": reply}
    )
    usage = {
        "promptTokenCount": INPUT_TOKENS,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro"}


def _stream_generate(model: Model, asked: Mapping[str, Any]) -> bytes:
    """Gemini's streamGenerateContent."""
    return _events(_generated(model, asked), named=False)


def _generate(model: Model, asked: Mapping[str, Any]) -> bytes:
    """Gemini's generateContent."""
    return json.dumps(_generated(model, asked)).encode()


_PROTOCOLS: Mapping[str, tuple[Callable[[Model, Mapping[str, Any]], bytes], str]] = {
    "/responses": (_responses, "text/event-stream"),
    "/chat/completions": (_chat, "text/event-stream"),
    "/messages": (_messages, "text/event-stream"),
    ":streamGenerateContent": (_stream_generate, "text/event-stream"),
    ":generateContent": (_generate, "application/json"),
}


PATHS = (
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1beta/models/gemini-2.5-pro:streamGenerateContent",
    "/v1beta/models/gemini-2.5-pro:generateContent",
)
"""Where the service answers, a path for each wire format."""


def answer_to(path: str, asked: Mapping[str, Any], model: Model) -> tuple[bytes, str] | None:
    """Return the answer to a request and its media type; None for a path that is not served."""
    for ending, (answer, kind) in _PROTOCOLS.items():
        if path.endswith(ending):
            return answer(model, asked), kind
    return None


class _Handler(LoopbackHandler):
    protocol_version = "HTTP/1.1"

    def get(self) -> None:
        self.state.unknown.append(f"GET {self.path}")
        self.send(404, b"{}")

    def head(self) -> None:
        self.send(200, b"")

    def post(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        path = self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.state.requests.append((path, headers, asked))
        if (answer := answer_to(path, asked, self.state)) is not None:
            self.send(200, *answer)
            return
        self.state.unknown.append(f"POST {self.path}")
        self.send(404, b"{}")


@contextmanager
def model_service(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[tuple[int, Model]]:
    """Yield the port of a service on 127.0.0.1, and its model.

    Args:
        tls: The server's certificate; None: plain HTTP.
        port: The port; 0: any.
    """
    with ThreadingHTTPServer(("127.0.0.1", port), _Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        server.daemon_threads = True
        model = server.state = Model()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port, model
        finally:
            server.shutdown()
            thread.join()
