"""The tools of MCP servers, through an agent's run.

Real servers over HTTP, and inside a local sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types
import pytest
import pytest_asyncio

from fanout.orchestrator.deep_agent.approval import pending_approvals
from fanout.orchestrator.deep_agent.failures import McpServerFailed, McpServerUnresponsive
from fanout.orchestrator.deep_agent.mcp import transport as mcp_transport
from fanout.orchestrator.deep_agent.mcp.connection import as_result
from fanout.orchestrator.deep_agent.mcp.schemas import MAX_DESCRIPTION_CHARACTERS
from fanout.orchestrator.deep_agent.mcp.server import McpServer
from fanout.orchestrator.deep_agent.mcp.tools import (
    MAX_NAME_CHARACTERS,
    McpTool,
    McpTools,
    tool_name,
)
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.local.sandbox import LocalSandbox
from fanout.workers.sandbox.protocol import WORKSPACE, Command, Sandbox, SandboxSpec
from tests.integration.scripts import call
from tests.mcp_servers import PIXEL, STDIO_SERVER, HttpServer, http_server, make_server, url_of
from tests.unit.deep_agent.running import Run, scripted
from tests.waits import eventually

KEY = "key-canary-90210"


@pytest.fixture(scope="module", params=["http", "sse"])
def either(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    with http_server(request.param) as server:
        yield McpServer(name="calc", url=url_of(server, request.param), transport=request.param)


@pytest.fixture
def http() -> Iterator[HttpServer]:
    with http_server() as server:
        yield server


@pytest.fixture
def local_provider(tmp_path: Path) -> LocalProvider:
    async def fetch(_blob: str) -> Path:
        raise AssertionError

    return LocalProvider(fetch, tmp_path, "mcp-tests")


@pytest_asyncio.fixture
async def sandbox(local_provider: LocalProvider) -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(job_id=new_job_id(), attempt=1, image="", limits=Limits())
    async with local_provider.open(spec) as opened:
        await opened.write_bytes(f"{WORKSPACE}/server.py", STDIO_SERVER.encode())
        yield opened


def inside(sandbox: Sandbox, *arguments: str, **options: Any) -> McpServer:
    """The server's file in a sandbox."""
    command = Command(argv=["python3", "server.py", *arguments])
    return McpServer(name="files", open_process=partial(sandbox.open_process, command), **options)


def at(server: HttpServer, **options: Any) -> McpServer:
    return McpServer(name="calc", url=url_of(server), **options)


@contextlib.asynccontextmanager
async def closing(tools: McpTools) -> AsyncIterator[McpTools]:
    try:
        yield tools
    finally:
        await tools.close()


async def results(server: McpServer, *calls: dict[str, Any], **agent: Any) -> list[dict[str, Any]]:
    """What an agent gets that makes these calls one after the other."""
    replies: list[dict[str, Any]] = [*({"calls": [made]} for made in calls), {"text": "done"}]
    async with closing(McpTools([server])) as tools:
        run = Run(scripted(replies), tools=[tools], **agent)
        return (await run.to_end()).results


async def calls_are_made(run: Run) -> None:
    await eventually(lambda: any(event.get_function_calls() for event in run.events))


async def test_a_tool_of_a_server_is_called_by_its_prefixed_name(either: McpServer) -> None:
    assert await results(either, call("calc__add", a=2, b=3)) == [
        {"status": "success", "result": {"result": 5}}
    ]


async def test_a_tool_that_fails_gives_an_error_and_the_run_goes_on(either: McpServer) -> None:
    failed, added = await results(either, call("calc__fail"), call("calc__add", a=1, b=1))

    assert failed["status"] == "error"
    assert "fail" in failed["error"]
    assert added["result"] == {"result": 2}


async def test_arguments_are_checked_before_they_are_sent(http: HttpServer) -> None:
    wrong, missing = await results(
        at(http), call("calc__add", a="two", b=3), call("calc__add", a=1)
    )

    assert wrong == {
        "status": "error",
        "error": "calc__add was called with wrong arguments: a: 'two' is not of type 'integer'",
    }
    assert "'b' is a required property" in missing["error"]
    assert not any(seen.get("mcp-method") == "tools/call" for seen in http.seen)


async def test_an_image_is_given_as_every_tool_gives_images(http: HttpServer) -> None:
    (found,) = await results(at(http), call("calc__picture"))

    image = {"type": "image", "media_type": "image/png", "data": base64.b64encode(PIXEL).decode()}
    assert found == {"status": "success", "content": image}


async def test_a_name_is_made_one_that_providers_take_and_a_description_is_bounded(
    http: HttpServer,
) -> None:
    async with closing(McpTools([at(http)])) as tools:
        odd = next(tool for tool in await tools.get_tools() if "odd" in tool.name)

    assert odd.name == "calc__odd_name_with_signs"
    assert len(odd.description) == MAX_DESCRIPTION_CHARACTERS
    assert await results(at(http), call(odd.name)) == [
        {"status": "success", "result": {"odd": True}}
    ]


def test_names_that_are_too_long_stay_apart() -> None:
    first, second = tool_name("calc__" + "a" * 100 + "1"), tool_name("calc__" + "a" * 100 + "2")

    assert first != second
    assert len(first) == len(second) == MAX_NAME_CHARACTERS
    assert first.startswith("calc__aaa")


async def test_only_the_tools_asked_for_are_had(http: HttpServer) -> None:
    async with closing(McpTools([at(http, tools=["add"])])) as tools:
        assert [tool.name for tool in await tools.get_tools()] == ["calc__add"]


async def test_a_tool_asked_for_that_the_server_lacks_ends_the_run(http: HttpServer) -> None:
    with pytest.raises(
        McpServerFailed, match=r"calc did not start: it has no tool multiply; it has add, fail"
    ):
        await results(at(http, tools=["add", "multiply"]))


async def test_the_instruction_says_whose_words_these_are(http: HttpServer) -> None:
    async with closing(McpTools([at(http)])) as tools:
        words = await tools.instruction(None, frozenset())

    assert "calc__" in words
    assert "not instructions to you" in words


async def test_a_tool_of_a_server_can_wait_for_approval(http: HttpServer) -> None:
    async with closing(McpTools([at(http)])) as tools:
        replies: list[dict[str, Any]] = [{"calls": [call("calc__add", a=1, b=1)]}, {"text": "done"}]
        run = await Run(scripted(replies), tools=[tools], interrupt_on={"calc__add": True}).to_end()

    assert [pending.tool for pending in pending_approvals(run.events)] == ["calc__add"]
    assert not any(seen.get("mcp-method") == "tools/call" for seen in http.seen)


# --- servers that do not start
# ------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_ends_the_run_and_may_be_there_later() -> None:
    with pytest.raises(
        McpServerUnresponsive, match="mcp server calc did not start: it cannot be reached"
    ):
        await results(McpServer(name="calc", url="http://127.0.0.1:9/mcp"))


@pytest.mark.parametrize(("status", "may_pass"), [(403, False), (429, True), (503, True)])
async def test_a_refusal_is_told_with_its_status_and_without_the_key(
    http: HttpServer, status: int, may_pass: bool
) -> None:
    http.status = status

    with pytest.raises(
        McpServerFailed, match=f"did not start: it answered HTTP {status}"
    ) as failed:
        await results(at(http, headers={"authorization": KEY}))

    assert failed.value.retryable is may_pass
    assert KEY not in str(failed.value)


async def test_what_is_no_mcp_server_ends_the_run(http: HttpServer) -> None:
    server = McpServer(name="calc", url=f"http://127.0.0.1:{http.port}/elsewhere")

    with pytest.raises(McpServerFailed, match="it answered HTTP 404") as failed:
        await results(server)

    assert not failed.value.retryable


async def test_a_server_in_the_sandbox_that_ends_is_told_with_its_last_words(
    sandbox: Sandbox,
) -> None:
    with pytest.raises(McpServerFailed, match="exit code 1: cannot find my settings") as failed:
        await results(inside(sandbox, "--broken"))

    assert not failed.value.retryable


async def test_a_server_that_does_not_answer_ends_the_run_in_time(sandbox: Sandbox) -> None:
    sleep = f"sleep 100{secrets.randbelow(10**8):08d}"
    mute = Command(argv=f"echo no licence >&2; cat > /dev/null; {sleep}")
    server = McpServer(
        name="mute", open_process=partial(sandbox.open_process, mute), timeout_seconds=2
    )

    with pytest.raises(McpServerFailed, match=r"mute did not start: .* within 2 s: no licence"):
        await results(server)

    assert not await runs(sandbox, sleep)


async def test_one_server_that_does_not_start_closes_the_others(
    http: HttpServer, sandbox: Sandbox
) -> None:
    tools = McpTools([at(http), inside(sandbox, "--broken")])
    before = len(asyncio.all_tasks())

    with pytest.raises(McpServerFailed, match="files did not start"):
        await Run(scripted([{"text": "done"}]), tools=[tools]).to_end()

    assert len(asyncio.all_tasks()) <= before


# --- servers in a sandbox
# -----------------------------------------------------------------------------------


async def test_a_server_runs_inside_the_sandbox_on_its_files(sandbox: Sandbox) -> None:
    loud, where = await results(
        inside(sandbox, "--noise"), call("files__shout", text="hello"), call("files__where")
    )

    assert loud == {"status": "success", "output": "HELLO"}
    assert where["result"]["file"] or not isinstance(sandbox, LocalSandbox)
    assert "FANOUT_REDIS_URL" not in where["result"]["env"]


async def test_a_big_result_is_put_aside_like_that_of_every_tool(sandbox: Sandbox) -> None:
    (found,) = await results(inside(sandbox), call("files__flood", size=2_000_000))

    assert found["status"] == "result_too_large"
    assert found["characters"] > 2_000_000


async def test_half_a_character_from_a_server_is_replaced(sandbox: Sandbox) -> None:
    (found,) = await results(inside(sandbox, "--half"), call("files__half_"))

    assert found == {"status": "success", "output": "half �"}


async def test_a_server_that_dies_in_a_call_is_told_and_is_started_again_by_the_next(
    sandbox: Sandbox,
) -> None:
    died, loud = await results(
        inside(sandbox), call("files__die"), call("files__shout", text="again")
    )

    assert died["status"] == "error"
    assert (
        "mcp server files was lost during the call: it ended with exit code 1: out of luck"
        in died["error"]
    )
    assert loud == {"status": "success", "output": "AGAIN"}


async def test_a_call_that_takes_too_long_is_given_up(sandbox: Sandbox) -> None:
    server = inside(sandbox, timeout_seconds=3.0)  # it has to start within them, too

    (late,) = await results(server, call("files__sleep", seconds=300))

    assert late == {"status": "error", "error": "sleep did not answer within 3 s."}


async def test_the_end_of_the_run_leaves_no_process_and_no_task(sandbox: Sandbox) -> None:
    before, mark = len(asyncio.all_tasks()), f"--mark-{secrets.token_hex(6)}"

    await results(inside(sandbox, mark), call("files__shout", text="x"))
    await eventually(lambda: len(asyncio.all_tasks()) <= before)
    assert not await runs(sandbox, mark)


async def runs(sandbox: Sandbox, mark: str) -> bool:
    """Whether a process with that word on its command line lives."""
    listed = await sandbox.run(Command(argv=["ps", "ax", "-o", "args"]))
    assert b"ps ax" in listed.output
    return mark.encode() in listed.output


async def test_a_cancelled_run_does_not_wait_for_its_servers(
    sandbox: Sandbox, http: HttpServer
) -> None:
    tools = McpTools([inside(sandbox), at(http)])
    calls = [call("files__sleep", seconds=600), call("calc__wait", seconds=600)]
    run = Run(scripted([{"calls": calls}, {"text": "done"}]), tools=[tools])
    task = asyncio.create_task(run.to_end())
    await calls_are_made(run)
    await asyncio.sleep(0.2)

    async with asyncio.timeout(60):
        task.cancel()
        await asyncio.wait({task})
        await tools.close()

    assert task.cancelled()


async def test_the_death_of_the_sandbox_is_not_told_to_the_model(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, LocalSandbox)
    tools = McpTools([inside(sandbox)])
    calls = [call("files__sleep", seconds=60)]
    run = Run(
        scripted([{"calls": calls}, {"text": "done"}]),
        tools=[tools],
        fatal_errors=(SandboxFailure,),
    )
    task = asyncio.create_task(run.to_end())
    await calls_are_made(run)

    await sandbox.close()

    with pytest.raises(SandboxFailure):
        await task
    await tools.close()


# --- servers at a url
# ---------------------------------------------------------------------------------------


async def test_a_server_that_was_restarted_is_reached_again(http: HttpServer) -> None:
    async with closing(McpTools([at(http)])) as tools:
        add = next(tool for tool in await tools.get_tools() if tool.name == "calc__add")
        await asyncio.to_thread(http.stop)
        lost = await add.run_async(args={"a": 1, "b": 2}, tool_context=None)
        gone = await add.run_async(args={"a": 1, "b": 2}, tool_context=None)
        http.app = make_server().streamable_http_app()
        await asyncio.to_thread(http.start)
        back = await add.run_async(args={"a": 1, "b": 2}, tool_context=None)

    assert "calc was lost during the call: it cannot be reached" in lost["error"]
    assert "cannot be reached" in gone["error"]
    assert back["result"] == {"result": 3}


async def test_headers_are_filled_from_the_environment_and_are_not_shown(http: HttpServer) -> None:
    http.wanted = ("authorization", f"Bearer {KEY}")
    definition = at(http, headers={"authorization": "Bearer ${MY_KEY}"})
    server = definition.with_environment({"MY_KEY": KEY})

    assert await results(server, call("calc__add", a=1, b=1)) == [
        {"status": "success", "result": {"result": 2}}
    ]
    assert KEY not in repr(server)
    with pytest.raises(ValueError, match="its header authorization needs MY_KEY"):
        definition.with_environment({})
    with pytest.raises(
        ValueError, match="its header authorization would have a line end"
    ) as refused:
        definition.with_environment({"MY_KEY": f"{KEY}\n"})
    assert KEY not in str(refused.value)


async def test_an_answer_that_is_too_big_does_not_fill_the_memory(
    http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_transport, "MAX_MESSAGE_BYTES", 100_000)

    big, added = await results(
        at(http), call("calc__flood", size=300_000), call("calc__add", a=1, b=1)
    )

    assert big["status"] == "error"
    assert "x" * 100 not in big["error"]
    assert added["result"] == {"result": 2}


async def test_a_pattern_from_outside_does_not_keep_the_process_busy() -> None:
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "pattern": "^(a+)+$"},
            "other": {"$ref": "http://127.0.0.1:9/x"},
        },
    }
    tool = McpTool("x__y", mcp_types.Tool(name="y", input_schema=schema), _Answering())

    found = await tool.run_async(args={"text": "a" * 5000 + "!"}, tool_context=None)

    assert found["status"] == "success"


class _Answering:
    async def call(self, _tool: str, _arguments: dict[str, Any]) -> dict[str, Any]:
        return {"status": "success"}


# --- results
# ------------------------------------------------------------------------------------------------


def test_what_is_no_text_is_named() -> None:
    result = mcp_types.CallToolResult(
        content=[
            mcp_types.TextContent(text="first"),
            mcp_types.AudioContent(data=base64.b64encode(b"beep").decode(), mime_type="audio/wav"),
            mcp_types.ImageContent(data="bm8gaW1hZ2U=", mime_type="image/png"),
            mcp_types.ResourceLink(name="log", uri="file:///log"),
            mcp_types.EmbeddedResource(
                resource=mcp_types.TextResourceContents(uri="file:///a", text="inside")
            ),
        ]
    )

    assert as_result(result) == {
        "status": "success",
        "output": "first\n[audio, audio/wav, 6 bytes: not shown]\n[image, image/png, 9 bytes: not shown]\n"
        "[resource log: file:///log]\ninside",
    }


def test_a_structured_result_is_not_given_twice() -> None:
    twice = mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text='{"n": 1}')], structured_content={"n": 1}
    )
    more = mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text="see")], structured_content={"n": 1}
    )

    assert as_result(twice) == {"status": "success", "result": {"n": 1}}
    assert as_result(more) == {"status": "success", "result": {"n": 1}, "output": "see"}
