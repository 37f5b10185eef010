"""Messages of MCP: of servers that agents use, and of clients before the server is imported."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

import mcp_types
from hypothesis import example, given
from hypothesis import strategies as st

from fanout.orchestrator.deep_agent.mcp.transport import Received
from fanout.orchestrator.extras.mcp_server.handshake import answer_first_requests
from fanout.orchestrator.valid_text import clean_json
from tests.fuzz.inputs import FUZZ, MARKS, SIMPLE, as_json, damaged, json_values, nested

pytestmark = MARKS

KEYS = st.sampled_from((
    *("jsonrpc", "id", "method", "params", "result", "error", "tools", "name", "inputSchema", "content"),
    *("type", "text", "code", "message", "data", "mimeType", "structuredContent", "isError", "properties"),
    "resource",
))  # fmt: skip
LEAVES = SIMPLE | st.sampled_from(
    ("2.0", "text", "image", "object", "resource", "tools/list", "ping", "complete")
)
ANY = json_values(KEYS, LEAVES)
BLOCKS = st.dictionaries(KEYS, LEAVES, max_size=4) | st.builds(
    lambda kind, rest: {"type": kind, **rest},
    st.sampled_from(("text", "image", "audio", "video", "resource", "resource_link", "tool_use", "")),
    st.dictionaries(
        st.sampled_from(("text", "data", "mimeType", "uri", "name", "resource")), LEAVES, max_size=3
    ),
)  # fmt: skip
TOOLS = st.fixed_dictionaries({}, optional={
    "name": LEAVES, "description": ANY, "inputSchema": ANY | st.just({"type": "object"}),
    "outputSchema": ANY, "annotations": ANY, "title": LEAVES,
})  # fmt: skip
RESULTS = (
    st.builds(lambda blocks: {"content": blocks}, st.lists(BLOCKS | LEAVES, max_size=3))
    | st.builds(lambda tools: {"tools": tools}, st.lists(TOOLS | LEAVES, max_size=3))
    | ANY
)
IDS = st.sampled_from((1, 2, 3, "1", "2", "3", 1.0, True, None, -1, "x", 2**70))
MESSAGES = (
    st.builds(lambda key, value: {"jsonrpc": "2.0", "id": key, "result": value}, IDS, RESULTS)
    | st.builds(lambda key, value: {"jsonrpc": "2.0", "id": key, "error": value}, IDS, ANY)
    | st.builds(lambda key, value: {"jsonrpc": "2.0", "id": key, "method": value}, IDS, ANY)
    | ANY
)
LINES = MESSAGES | damaged("mcp", (b'{"id":3,"result":', b"NaN", b"[", b'"\\ud83d"', b"{" * 40))
REQUESTS = {1: "initialize", 2: "tools/list", 3: "tools/call"}
FORMS: dict[str, Any] = {
    "initialize": mcp_types.InitializeResult,
    "tools/list": mcp_types.ListToolsResult,
    "tools/call": mcp_types.CallToolResult,
}


@FUZZ
@given(st.lists(LINES, min_size=1, max_size=5))
@example([{"jsonrpc": "2.0", "id": 1, "result": nested(400, "a", is_list=False)}])
def test_each_request_has_one_answer_that_the_library_accepts(lines: list[Any]) -> None:
    received = Received()
    for number, method in REQUESTS.items():
        received.note_sent({"jsonrpc": "2.0", "id": number, "method": method})
    answered: Counter[int | str] = Counter()
    for line in lines:
        for message in asyncio.run(received.messages(as_json(line))) or []:
            mcp_types.jsonrpc_message_adapter.validate_python(message, by_name=False)
            if "method" in message:
                continue
            answered[message["id"]] += 1
            if "result" in message and message["id"] != 1:
                FORMS[REQUESTS[message["id"]]].model_validate(message["result"], by_name=False)
    assert set(answered) <= set(REQUESTS)
    assert max(answered.values(), default=0) <= 1


CALLS = st.builds(
    lambda key, method, more: {"jsonrpc": "2.0", "id": key, "method": method, **more},
    IDS | ANY, st.sampled_from(("initialize", "notifications/initialized", "tools/list", "tools/call")) | ANY,
    st.fixed_dictionaries({}, optional={"params": ANY | st.just({"protocolVersion": "2025-06-18"})}),
)  # fmt: skip


@FUZZ
@given(st.lists(CALLS | damaged("mcp") | ANY, max_size=2))
@example([{"jsonrpc": "2.0", "id": 1, "method": []}])
@example([{"jsonrpc": "2.0", "id": [], "method": "tools/list"}])
@example([nested(5_000, "a", is_list=True)])
def test_a_client_is_answered_or_left_to_the_server(lines: list[Any]) -> None:
    sent = b"".join(as_json(line).replace(b"\n", b" ") + b"\n" for line in lines)[: 20 * 1024]
    (source, ours), (theirs, target) = os.pipe(), os.pipe()
    try:
        os.set_blocking(ours, False)
        os.write(ours, sent)
        os.close(ours)
        said = answer_first_requests(source, target)
        os.close(target)
        with os.fdopen(theirs, "rb") as answers:
            for answer in answers:
                mcp_types.jsonrpc_message_adapter.validate_json(answer, by_name=False)
        assert said is None or b"".join(said.unanswered) in sent or said.unanswered
    finally:
        for descriptor in (source, ours, theirs, target):
            try:
                os.close(descriptor)
            except OSError:
                continue


@FUZZ
@given(LINES)
def test_cleaned_json_has_the_same_form(message: Any) -> None:
    line = as_json(message)
    cleaned = clean_json(line)
    try:
        before = json.loads(line)
    except (ValueError, RecursionError):
        return
    json.dumps(json.loads(cleaned)).encode()
    assert type(json.loads(cleaned)) is type(before)
