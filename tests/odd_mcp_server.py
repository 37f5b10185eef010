"""An MCP server that answers whatever it is given to answer, over each transport.

`ANSWERS` are lines as servers in the wild send them; `ID` in one is replaced by the request's id.
A tool that is called with `k` answers with that line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

FINE: dict[str, Any] = {"type": "object", "properties": {"k": {"type": "string"}}}
LONG = "a" * 79


def result(content: Any, **more: Any) -> str:
    return response(result={"content": content, **more})


def response(**member: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "ID", **member}).replace('"ID"', "ID")


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


TOOLS: list[Any] = [
    {"name": "fine", "description": "The one that is called.", "inputSchema": FINE},
    {"name": "no_schema"},
    {"name": "null_schema", "inputSchema": None, "description": None, "annotations": []},
    {"name": "true_schema", "inputSchema": True},
    {"name": "no_type", "inputSchema": {"properties": {"a": {"type": ["string", "null"]}}}},
    {"name": "type_list", "inputSchema": {"type": ["object", "null"]}},
    {"name": "null_properties", "inputSchema": {"type": "object", "properties": None}},
    {"name": "boolean_property", "inputSchema": {"type": "object", "properties": {"x": True}}},
    {
        "name": "misspelt_type",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "strnig"}}},
    },
    {
        "name": "required_in_a_property",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "string", "required": True}},
        },
    },
    {
        "name": "refers_to_itself",
        "inputSchema": {"type": "object", "properties": {"n": {"$ref": "#"}}},
    },
    {
        "name": "refers_elsewhere",
        "inputSchema": {
            "type": "object",
            "properties": {"n": {"$ref": "https://example.org/schema"}},
        },
    },
    {
        "name": "alternatives",
        "inputSchema": {
            "type": "object",
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "properties": {"a": {"const": 1}, "b": {"type": "number", "exclusiveMinimum": 0}},
        },
    },
    {"name": "dotted.name/with space", "inputSchema": FINE},
    {"name": "dotted name.with/space", "inputSchema": FINE},
    {"name": "dotted_name_with_space", "inputSchema": FINE},
    {"name": LONG + "b", "inputSchema": FINE},
    {"name": LONG + "c", "inputSchema": FINE},
    {"name": "long_description", "description": "x" * 100_000, "inputSchema": FINE},
    {"name": "number_as_description", "description": 7, "title": [], "inputSchema": FINE},
    {"name": "odd_output_schema", "inputSchema": FINE, "outputSchema": {"type": "object", "x": 1}},
    {
        "name": "promises",
        "inputSchema": FINE,
        "outputSchema": {
            "type": "object",
            "properties": {"v": {"type": "integer"}},
            "required": ["v"],
        },
    },
    {"name": "odd_members", "inputSchema": FINE, "icons": "none", "execution": 3, "_meta": []},
    # These cannot be used.
    {"name": "fine", "description": "The second of that name.", "inputSchema": FINE},
    {"name": "", "inputSchema": FINE},
    {"name": 5, "inputSchema": FINE},
    "not an object",
    {"name": "takes_a_text", "inputSchema": {"type": "string"}},
    {"name": "list_as_schema", "inputSchema": []},
    {"name": "huge_schema", "inputSchema": {"type": "object", "description": "x" * 40_000}},
]

USABLE = {tool["name"] for tool in TOOLS[:23]}
LEFT_OUT = {
    "fine (listed again)": "the first one of that name is used",
    "number 25": "it has no name",
    "number 26": "it has no name",
    "number 27": "it has no name",
    "takes_a_text": "its schema describes something else than an object, which arguments are",
    "list_as_schema": "its schema is a list, not an object",
    "huge_schema": "its schema has more than 32000 characters",
}

ANSWERS: dict[str, str] = {
    "text": result([text("said")]),
    "unknown block": result([{"type": "hologram", "data": "x"}, text("seen")]),
    "resource link": result([{"type": "resource_link", "uri": "file:///y", "name": "y"}]),
    "link without a name": result([{"type": "resource_link", "uri": "file:///y"}, text("seen")]),
    "not an image": result([{"type": "image", "data": "%%%", "mimeType": "image/png"}]),
    "image without data": result([{"type": "image"}, text("seen")]),
    "odd annotations": result([{**text("seen"), "annotations": 5, "_meta": []}]),
    "content is a text": result("said"),
    "content is a block": result(text("said")),
    "content of texts": result(["said", 5]),
    "block without a type": result([{"text": "said"}]),
    "asks for more": response(result={"resultType": "input_required", "inputRequests": {}}),
    "no content": response(result={"toolResult": "old"}),
    "content is a number": result(5),
    "structured only": response(result={"structuredContent": {"v": 1}}),
    "structured list": result([], structuredContent=[1, 2]),
    "says that it failed": result([text("it broke")], isError="true"),
    "result is a text": response(result="said"),
    "result is null": response(result=None),
    "neither": response(),
    "error -32000": response(error={"code": -32000, "message": "boom"}),
    "error -32001": response(error={"code": -32001, "message": "too slow"}),
    "error with data": response(
        error={"code": -32602, "message": "no such row", "data": {"row": 7}}
    ),
    "error is a text": response(error="boom"),
    "error without a message": response(error={"reason": "boom"}),
    "error and null": response(error=None, result={"content": [text("said")]}),
    "no version": response(result={"content": [text("said")]}).replace('"jsonrpc": "2.0", ', ""),
    "half a character": result([text("half HALF")]).replace("HALF", "\\ud83d"),
    "not UTF-8": result([text("caf\xe9")]).replace("\\u00e9", "\xe9"),
    "not a number": result([], structuredContent={"v": "NAN"}).replace('"NAN"', "NaN"),
    "cut": result([text("said")])[:-9],
    "cut before its id": '{"jsonrpc": "2.0", "result": {"content": [',
    "id as a text": result([text("said")]).replace("ID", '"ID"'),
    "list of messages": f'[{{"jsonrpc": "2.0", "method": "x/y"}}, {result([text("said")])}]',
}
"""By `k`. The lines are sent as Latin-1, so that one of them is not UTF-8."""

NOISE = [
    "Server mode: STDIO",
    "",
    "INFO starting {not json",
    '{"level": 30, "msg": "ready", "error": "none"}',
    '{"jsonrpc": "2.0", "method": "notifications/unheard_of", "params": [1]}',
    '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "odd"}}',
    '{"jsonrpc": "2.0", "id": "s1", "method": "roots/list"}',
    '{"jsonrpc": "2.0", "id": "s2", "method": "sampling/createMessage", "params": {}}',
    '{"jsonrpc": "2.0", "id": "s3", "method": "elicitation/create"}',
    '{"jsonrpc": "2.0", "id": "s4", "method": "unheard/of"}',
]
"""Lines that a process prints before each answer."""

PROCESS = """
import json, sys
TABLE = json.load(open(sys.argv[1]))
sys.stderr.write("x" * 300_000)
print(*TABLE["noise"], sep="\\n", flush=True)
heard = {}
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        heard[message["id"]] = "error" in message
    if "id" not in message or "method" not in message:
        continue
    TABLE["answers"]["heard"] = json.dumps(
        {"jsonrpc": "2.0", "id": "X", "result": {"structuredContent": heard}}
    ).replace('"X"', "ID")
    k = (message.get("params") or {}).get("arguments", {}).get("k", "text")
    if k == "exit":
        sys.exit("out of luck")
    page = (message.get("params") or {}).get("cursor", "")
    said = TABLE.get(f"{message['method']} {page}") or TABLE.get(message["method"])
    said = said or TABLE["answers"][k]
    out = "".join(each + "\\n" for each in [*TABLE["noise"], said])
    sys.stdout.buffer.write(out.replace("ID", json.dumps(message["id"])).encode("latin-1"))
    sys.stdout.flush()
"""

INITIALIZE = response(result={"protocolVersion": "2025-06-18", "serverInfo": "odd"})
UNKNOWN = response(error={"code": -32601, "message": "no such method"})


METHODS: dict[str, Any] = {
    "server/discover": UNKNOWN,
    "initialize": INITIALIZE,
    "tools/list": response(result={"tools": TOOLS, "nextCursor": 5}),
}
"""What the server answers to all but calls."""


def write_process(folder: Path, **methods: str) -> tuple[str, str]:
    """Write the server as a file that needs nothing but Python, and return its arguments.

    Args:
        folder: The folder of its files.
        methods: Other answers, by method.
    """
    table = {**METHODS, **methods, "noise": NOISE, "answers": ANSWERS}
    (folder / "odd.py").write_text(PROCESS)
    (folder / "table.json").write_text(json.dumps(table))
    return str(folder / "odd.py"), str(folder / "table.json")


def answer_to(message: dict[str, Any]) -> bytes:
    arguments = (message.get("params") or {}).get("arguments") or {}
    said = METHODS.get(message["method"]) or ANSWERS[arguments.get("k", "text")]
    line: str = said.replace("ID", json.dumps(message["id"]))
    return line.encode("latin-1")


def over_http(*, events: bool) -> Starlette:
    """The server at /mcp, which answers with a body, or with an event."""

    async def post(request: Request) -> Response:
        message = await request.json()
        if "id" not in message or "method" not in message:
            return Response(status_code=202)
        if "'refused'" in str(message.get("params")):
            refusal = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"not yours"}}'
            return Response(refusal, 403, media_type="application/json")
        if "refused in words" in str(message.get("params")):
            return Response("your plan has no searches left", 402, media_type="text/plain")
        if "refused with a page" in str(message.get("params")):
            return Response("<html>Gateway</html>", 502, media_type="text/html")
        if "quotes its request" in str(message.get("params")):
            key = request.headers["authorization"]
            error = {"code": -32000, "message": f"not for {key}", "data": {"key": key.split()[-1]}}
            quoting = response(error=error)
            return Response(
                quoting.replace("ID", str(message["id"])), media_type="application/json"
            )
        body = answer_to(message)
        if events:
            noise = f"event: message\ndata: {NOISE[5]}\n\n: hi\r\n\r\ndata: ready\n\n".encode()
            # A line of data may end anywhere.
            data = body.replace(b', "', b',\r\ndata: "')
            body = noise + b"id: 1\ndata:" + data + b"\r\n\r\n"
            return Response(body, media_type="text/event-stream")
        kind = "text/plain" if "text" in str(message.get("params")) else "application/json"
        return Response(body, media_type=kind)

    async def moved(_: Request) -> Response:
        return RedirectResponse("/mcp", 307)

    routes = [Route("/mcp", post, methods=["POST"]), Route("/moved", moved, methods=["POST"])]
    return Starlette(routes=routes)


def with_sessions(*, unknown: int) -> tuple[Starlette, Callable[[], None]]:
    """The server at /mcp with sessions, and what makes it forget them.

    Args:
        unknown: The status of an answer to a session that it does not know.
    """
    begun: list[str] = []
    known: set[str] = set()

    async def post(request: Request) -> Response:
        message = await request.json()
        if message.get("method") == "initialize":
            begun.append(f"session-{len(begun)}")
            known.add(begun[-1])
            return Response(answer_to(message), headers={"mcp-session-id": begun[-1]})
        is_known = request.headers.get("mcp-session-id") in known
        if message.get("method") != "server/discover" and not is_known:
            return Response("no such session", unknown)
        if "id" not in message:
            return Response(status_code=202)
        return Response(answer_to(message), media_type="application/json")

    app = Starlette(routes=[Route("/mcp", post, methods=["POST", "DELETE"])])
    return app, known.clear


def over_sse() -> Starlette:
    """The server at /sse, with the transport that MCP had first."""
    queues: list[asyncio.Queue[bytes]] = []

    async def get(_: Request) -> Response:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queues.append(queue)

        async def events() -> AsyncIterator[bytes]:
            yield b"event: endpoint\ndata: /messages\n\n"
            while True:
                body = await queue.get()
                yield b"event: message\ndata: " + body + b"\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def post(request: Request) -> Response:
        message = await request.json()
        if "refused" in str(message.get("params")):
            return Response("no", 500)
        if "id" in message and "method" in message:
            queues[-1].put_nowait(answer_to(message))
        return Response("Accepted", 202)

    return Starlette(
        routes=[Route("/sse", get), Route("/messages", post, methods=["POST"])],
    )
