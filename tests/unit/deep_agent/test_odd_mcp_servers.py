"""Servers that do not keep to MCP: what is odd costs one tool or one call, over each transport."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from fanout.orchestrator.deep_agent.execution import server_process
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.mcp.connection import NOT_STRUCTURED, McpConnection
from fanout.orchestrator.deep_agent.mcp.server import McpServer
from fanout.orchestrator.deep_agent.mcp.tools import MAX_NAME_CHARACTERS, McpTools
from tests import odd_mcp_server as odd
from tests.integration.scripts import call
from tests.mcp_servers import http_server, url_of
from tests.unit.deep_agent.running import Run, scripted

SUCCESS = {"status": "success"}
SAID = {**SUCCESS, "output": "said"}
SEEN = {**SUCCESS, "output": "seen"}
UNREADABLE = "fine failed: the server's answer is not valid JSON-RPC"
INVALID = "fine failed: the server's result is invalid: "

EXPECTED: dict[str, dict[str, Any] | str] = {
    "text": SAID,
    "unknown block": {**SUCCESS, "output": "[hologram, of an unknown form: not shown]\nseen"},
    "resource link": {**SUCCESS, "output": "[resource y: file:///y]"},
    "link without a name": {
        **SUCCESS,
        "output": "[resource_link, of an unknown form: not shown]\nseen",
    },
    "not an image": {**SUCCESS, "output": "[image, image/png, 2 bytes: not shown]"},
    "image without data": {**SUCCESS, "output": "[image, of an unknown form: not shown]\nseen"},
    "odd annotations": SEEN,
    "content is a text": SAID,
    "content is a block": SAID,
    "content of texts": {**SUCCESS, "output": "said\n[a number: not shown]"},
    "block without a type": SAID,
    "asks for more": INVALID
    + "it is not complete, but input_required, which is not supported here",
    "no content": INVALID + 'it has no content: {"toolResult": "old"}',
    "content is a number": INVALID + "its content is a number, not a list",
    "structured only": {**SUCCESS, "result": {"v": 1}},
    "structured list": {**SUCCESS, "result": {"result": [1, 2]}},
    "says that it failed": "it broke",
    "result is a text": INVALID + "it is a text, not an object",
    "result is null": INVALID + "it is null, not an object",
    "neither": "fine failed: the server's answer has neither a result nor an error",
    "error -32000": "fine failed: boom",
    "error -32001": "fine failed: too slow",
    "error with data": 'fine failed: no such row {"row": 7}',
    "error is a text": "fine failed: boom",
    "error without a message": 'fine failed: {"reason": "boom"}',
    "error and null": SAID,
    "no version": SAID,
    "half a character": {**SUCCESS, "output": "half \ufffd"},
    "not UTF-8": {**SUCCESS, "output": "caf\ufffd"},
    "not a number": {**SUCCESS, "result": {"v": None}},
    "cut": UNREADABLE,
    "cut before its id": UNREADABLE,
    "id as a text": SAID,
    "list of messages": SAID,
}


@pytest.fixture(scope="module", params=["process", "bodies", "events", "sse"])
def odd_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[McpServer]:
    if request.param == "process":
        yield process(odd.write_process(tmp_path_factory.mktemp("odd")))
        return
    with at_a_url(request.param) as server:
        yield server


@contextmanager
def at_a_url(transport: str, **options: Any) -> Iterator[McpServer]:
    is_sse = transport == "sse"
    app = odd.over_sse() if is_sse else odd.over_http(events=transport == "events")
    kind: Literal["http", "sse"] = "sse" if is_sse else "http"
    with http_server(kind, app) as served:
        yield McpServer(name="odd", url=url_of(served, kind), transport=kind, **options)


def process(arguments: tuple[str, ...], **options: Any) -> McpServer:
    return McpServer(
        name="odd", open_process=partial(server_process, sys.executable, arguments, {}), **options
    )


@asynccontextmanager
async def connected(server: McpServer) -> AsyncIterator[McpConnection]:
    connection = McpConnection(server)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


async def outcome(connection: McpConnection, tool: str = "fine", **args: Any) -> Any:
    """The result, or the text of the error."""
    try:
        result = await connection.call(tool, args)
    except ToolMistake as mistake:
        return str(mistake)
    return result["error"] if result["status"] == "error" else result


async def test_each_answer_costs_at_most_its_call(odd_server: McpServer) -> None:
    async with connected(odd_server) as connection:
        found = {k: await outcome(connection, k=k) for k in odd.ANSWERS}
        after = await outcome(connection)

    assert found == EXPECTED
    assert after == SAID


async def test_a_list_with_odd_tools_costs_those_that_cannot_be_used(
    odd_server: McpServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("structlog.is_configured", lambda: False)  # whatever other tests have done
    reports: list[str] = []

    async def report(text: str) -> None:
        reports.append(text)

    tools = McpTools([odd_server], report)
    try:
        usable = await tools.get_tools()
    finally:
        await tools.close()

    assert not capsys.readouterr().out  # the standard output is the program's own
    names = [tool.name for tool in usable]
    assert {tool._remote_name for tool in usable} == odd.USABLE
    assert len(set(names)) == len(odd.USABLE)
    assert max(map(len, names)) <= MAX_NAME_CHARACTERS
    assert reports == [
        f"mcp server odd: its tool {name} is left out: {reason}."
        for name, reason in sorted(
            odd.LEFT_OUT.items(), key=lambda one: reports_order(one, reports)
        )
    ]


def reports_order(left_out: tuple[str, str], reports: list[str]) -> int:
    return next(
        (number for number, text in enumerate(reports) if f"its tool {left_out[0]} " in text), -1
    )


async def test_a_text_counts_where_a_structured_result_is_promised(odd_server: McpServer) -> None:
    async with connected(odd_server) as connection:
        instead = await outcome(connection, "promises", k="text")
        other = await outcome(connection, "promises", k="not a number")
        kept = await outcome(connection, "promises", k="structured only")

    assert instead == {**SAID, "note": NOT_STRUCTURED}
    assert other["result"] == {"v": None}
    assert "v: None is not of type 'integer'" in other["note"]
    assert kept == {**SUCCESS, "result": {"v": 1}}


@pytest.mark.parametrize(
    ("transport", "words"),
    [("bodies", "not yours (HTTP 403)"), ("sse", "lost during the call: it answered HTTP 500")],
)
async def test_a_refused_message_costs_its_call(transport: str, words: str) -> None:
    with at_a_url(transport) as server:
        async with connected(server) as connection:
            refused = await outcome(connection, k="refused")
            after = await outcome(connection)

    assert words in refused
    assert after == SAID


async def test_a_refusal_that_is_not_json_is_told_in_the_servers_words_or_its_statuss() -> None:
    with at_a_url("bodies") as server:
        async with connected(server) as connection:
            words = await outcome(connection, k="refused in words")
            page = await outcome(connection, k="refused with a page")

    assert words == "fine failed: your plan has no searches left (HTTP 402)"
    assert page == "fine failed: Bad Gateway (HTTP 502)"


async def test_a_server_that_moved_within_its_address_is_followed() -> None:
    with at_a_url("bodies") as server:
        moved = replace(server, url=str(server.url).replace("/mcp", "/moved"))
        async with connected(moved) as connection:
            assert await outcome(connection) == SAID


@pytest.mark.parametrize(("status", "is_repeated"), [(404, True), (400, False)])
async def test_a_server_that_forgot_its_sessions_is_given_a_new_one(
    status: int, is_repeated: bool
) -> None:
    app, forget = odd.with_sessions(unknown=status)
    with http_server("http", app) as served:
        async with connected(McpServer(name="odd", url=url_of(served, "http"))) as connection:
            before = await outcome(connection)
            forget()
            # Only 404 says that the session is unknown, so that the call had no effect.
            next_one = await outcome(connection)
            after = await outcome(connection)

    assert before == after == SAID
    assert next_one == (SAID if is_repeated else "fine failed: no such session (HTTP 400)")


async def test_a_list_whose_next_page_fails_costs_the_tools_of_that_page(tmp_path: Path) -> None:
    listed = odd.response(result={"tools": odd.TOOLS[:2], "nextCursor": "next"})
    failed = odd.response(error={"code": -32602, "message": "no such cursor"})
    arguments = odd.write_process(tmp_path, **{"tools/list": listed, "tools/list next": failed})
    reports: list[str] = []

    async def report(text: str) -> None:
        reports.append(text)

    tools = McpTools([process(arguments)], report)
    try:
        assert [tool.name for tool in await tools.get_tools()] == ["odd__fine", "odd__no_schema"]
    finally:
        await tools.close()
    [left_out] = reports
    assert "number 3 and later is left out: the next page of the list failed: no such" in left_out


async def test_a_servers_words_are_kept_without_the_key_that_they_quote() -> None:
    key = "key-canary-4711"
    with at_a_url("bodies", headers={"authorization": f"Bearer {key}"}) as server:
        async with connected(server) as connection:
            words = await outcome(connection, k="quotes its request")

    assert words == 'fine failed: not for … {"key": "…"}'


async def test_a_server_that_ends_costs_its_call(tmp_path: Path) -> None:
    async with connected(process(odd.write_process(tmp_path))) as connection:
        ended = await outcome(connection, k="exit")
        after = await outcome(connection)

    assert "was lost during the call: it ended with exit code 1" in ended
    assert after == SAID


async def test_requests_of_a_server_are_answered_as_not_supported(tmp_path: Path) -> None:
    requests = ["s1", "s2", "s3", "s4"]
    async with connected(process(odd.write_process(tmp_path))) as connection:
        heard: dict[str, bool] = {}
        while len(heard) < len(requests):
            heard = (await outcome(connection, k="heard"))["result"]

    assert heard == dict.fromkeys(requests, True)


async def test_a_tool_asked_for_that_cannot_be_used_is_named_to_the_agent(tmp_path: Path) -> None:
    server = process(odd.write_process(tmp_path), tools=("fine", "takes_a_text"))
    tools = McpTools([server])
    try:
        run = await Run(
            scripted([{"calls": [call("odd__fine", k="text")]}, {"text": "done"}]), tools=[tools]
        ).to_end()
        told = await tools.instruction(None, frozenset())
    finally:
        await tools.close()

    assert run.results == [SAID]
    assert "odd__takes_a_text (its schema describes something else than an object" in told


async def test_a_list_that_goes_in_a_circle_ends(tmp_path: Path) -> None:
    listed = odd.response(result={"tools": odd.TOOLS[:2], "nextCursor": "again"})
    tools = McpTools([process(odd.write_process(tmp_path, **{"tools/list": listed}))])
    try:
        assert [tool.name for tool in await tools.get_tools()] == ["odd__fine", "odd__no_schema"]
    finally:
        await tools.close()
