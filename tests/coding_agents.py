"""Real coding agents from npm, and a model server for each of their protocols on the loopback.

The model has a script, not replies: it submits a job, waits until it has ended, reads its patch and
applies it, whatever the names are that a program gives to the tools.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.loopback import LoopbackHandler, loopback_server

PACKAGES = {
    "codex": ("@openai/codex", "0.171.0"),
    "gemini": ("@google/gemini-cli", "0.61.0"),
    "opencode": ("opencode-ai", "1.18.33"),
    "claude": ("@anthropic-ai/claude-code", "2.1.332"),
}
"""Program -> its npm package and version."""
INSTALL_SECONDS = 240

MAX_CALLS = 12
"""Of one conversation: a job takes seconds, and each wait half a minute."""

WAITS = "WaitForMcpServers"
TASK = "write the notes"
SAID = "All is applied."


def install_program(name: str, cache: Path) -> Path:
    """Install a program, unless it is there already, and return its path.

    Raises:
        subprocess.SubprocessError: npm cannot install it.
    """
    package, version = PACKAGES[name]
    folder = cache / f"{name}-{version}"
    program = folder / "node_modules" / ".bin" / name
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                folder,
                f"{package}@{version}",
            ],
            check=True,
            capture_output=True,
            timeout=INSTALL_SECONDS,
        )
        (folder / "installed").touch()
    return program


@dataclass(frozen=True)
class Call:
    """A call of a tool that the model wants."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass
class Script:
    """What the model does with the tools of fanout, and what it has seen."""

    tools: set[str] = field(default_factory=set)
    """The tools that the program has offered, by fanout's names."""
    offered: list[str] = field(default_factory=list)
    """All tools of the newest request, by the program's names."""
    called: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    """What the calls of the newest request have brought."""

    def next(self, offered: Sequence[str], results: Sequence[str]) -> Call | str:
        """Return what the model replies: a call, or a text.

        Args:
            offered: The names of the tools, as the program has them.
            results: What the calls so far have brought, as texts.
        """
        names = {fanout: name for name in offered if (fanout := self._name(name))}
        self.offered = [*offered] or self.offered
        if not names and WAITS in offered:  # Claude Code connects to its servers meanwhile
            return Call(WAITS, {})
        if not names:  # the program asks for a title
            return "Notes"
        self.tools |= names.keys()
        submitted = [at for at, result in enumerate(results) if "job_id" in result]
        self.results = list(results[submitted[0] if submitted else len(results) :])
        wanted = self._wanted(self.results)
        if isinstance(wanted, str):
            return wanted
        tool, arguments = wanted
        self.called.append(tool)
        return Call(names[tool], arguments)

    @staticmethod
    def _name(name: str) -> str | None:
        found = re.fullmatch(r"(?:.*fanout_*)?(submit_job|wait_job|get_patch|apply_patch)", name)
        return found[1] if found else None

    @staticmethod
    def _wanted(results: Sequence[str]) -> tuple[str, dict[str, Any]] | str:
        if len(results) > MAX_CALLS:
            return f"No end after {MAX_CALLS} calls: {results[-1]}"
        if not results:
            return "submit_job", {"description": TASK, "workspace": "."}
        job = re.search(r'job_id\\*"?:\s*\\*"(\w+)', results[0])
        if job is None:
            return f"No job was submitted: {results[0]}"
        given = {"job_id": job[1]}
        last = results[-1]
        if "diff --git" in last:
            return "apply_patch", {**given, "into": "."}
        if re.search(r'ended\\*"?:\s*true', last):
            return "get_patch", given
        if re.search(r"(applied|merged|taken)", last) and len(results) > 2:
            return SAID
        return "wait_job", {**given, "timeout_seconds": 30}


class _Handler(LoopbackHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[Script]
    failures: ClassVar[list[str]]

    def get(self) -> None:
        self._send(b"{}", "application/json", 404)

    def head(self) -> None:
        self._send(b"", "application/json")

    def post(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        path = self.path.partition("?")[0]
        for ending, answer in _PROTOCOLS.items():
            if path.endswith(ending):
                self._send(answer(self.script, asked), "text/event-stream")
                return
        if path.endswith(":generateContent"):
            content = {"role": "model", "parts": [{"text": "Notes"}]}
            reply = {"candidates": [{"content": content, "finishReason": "STOP"}]}
            self._send(json.dumps(reply).encode(), "application/json")
            return
        self.failures.append(self.path)
        self._send(b"{}", "application/json", 404)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _events(*events: Mapping[str, Any], named: bool = True) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_texts(part) for part in content)
    if isinstance(content, dict):
        return _texts(content["text"]) if "text" in content else json.dumps(content)
    return json.dumps(content)


def _responses(script: Script, asked: Mapping[str, Any]) -> bytes:
    """OpenAI's Responses."""
    offered: dict[str, str] = {}
    for tool in asked.get("tools", ()):
        if tool.get("type") == "namespace":
            offered |= {f"{tool['name']}{one['name']}": tool["name"] for one in tool["tools"]}
        elif "name" in tool:
            offered[tool["name"]] = ""
    items = asked.get("input", ())
    results = [
        _texts(item["output"]) for item in items if item.get("type") == "function_call_output"
    ]
    reply = script.next([*offered], results)
    if isinstance(reply, Call):
        namespace = offered[reply.tool]
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{len(results)}",
            "call_id": f"call_{len(results)}",
            "name": reply.tool.removeprefix(namespace),
            "arguments": json.dumps(reply.arguments),
            **({"namespace": namespace} if namespace else {}),
        }
    else:
        part = {"type": "output_text", "text": reply, "annotations": []}
        item = {"type": "message", "id": "msg", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return _events(
        {"type": "response.created", "response": {"id": "resp"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.completed",
            "response": {"id": "resp", "output": [item], "usage": usage},
        },
    )


def _chat(script: Script, asked: Mapping[str, Any]) -> bytes:
    """OpenAI's chat completions."""
    offered = [tool["function"]["name"] for tool in asked.get("tools", ())]
    results = [_texts(one["content"]) for one in asked["messages"] if one["role"] == "tool"]
    reply = script.next(offered, results)
    if isinstance(reply, Call):
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        call = {"index": 0, "id": f"call_{len(results)}", "type": "function", "function": function}
        delta, reason = {"role": "assistant", "tool_calls": [call]}, "tool_calls"
    else:
        delta, reason = {"role": "assistant", "content": reply}, "stop"
    base = {"id": "chat", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = (
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    )
    return _events(*chunks, named=False) + b"data: [DONE]\n\n"


def _messages(script: Script, asked: Mapping[str, Any]) -> bytes:
    """Anthropic's messages."""
    offered = [tool["name"] for tool in asked.get("tools", ()) if "name" in tool]
    results = [
        _texts(block.get("content", ""))
        for message in asked["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block.get("type") == "tool_result"
    ]
    reply = script.next(offered, results)
    if isinstance(reply, Call):
        begun = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": reply.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(reply.arguments)}
        reason = "tool_use"
    else:
        begun, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": reply}
        reason = "end_turn"
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": "msg", "type": "message", "role": "assistant", "model": asked["model"],
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    return _events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": usage,
        },
        {"type": "message_stop"},
    )


def _generate(script: Script, asked: Mapping[str, Any]) -> bytes:
    """Gemini's streamGenerateContent."""
    offered = [
        function["name"]
        for tool in asked.get("tools", ())
        for function in tool.get("functionDeclarations", ())
    ]
    results = [
        json.dumps(part["functionResponse"].get("response"))
        for content in asked["contents"]
        for part in content.get("parts", ())
        if "functionResponse" in part
    ]
    reply = script.next(offered, results)
    part: dict[str, Any] = (
        {"functionCall": {"name": reply.tool, "args": reply.arguments}}
        if isinstance(reply, Call)
        else {"text": reply}
    )
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    candidate = {"index": 0, "content": content, "finishReason": "STOP"}
    return _events({"candidates": [candidate], "usageMetadata": usage}, named=False)


_PROTOCOLS = {
    "/responses": _responses,
    "/chat/completions": _chat,
    "/messages": _messages,
    ":streamGenerateContent": _generate,
}


@contextmanager
def model_server() -> Iterator[tuple[str, Script]]:
    """Yield the address of a server of all protocols, and what its model does."""
    script = Script()
    handler = type("Handler", (_Handler,), {"script": script, "failures": []})
    with loopback_server(handler, str) as url:
        yield url, script
