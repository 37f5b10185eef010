"""S2: the examples of execution and sub-agents, each text as the seed has it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.deep_agent import execution
from fanout.orchestrator.deep_agent.failures import McpServerFailed
from tests.integration.scripts import call
from tests.integration.seeds.conftest import Example, Replies, converse
from tests.mcp_servers import STDIO_SERVER, http_server, url_of

pytestmark = pytest.mark.blocks_loop(
    "the seed's local tool is a plain function, which blocks a loop that calls it"
)

LOCAL_TOOL = """
from adk_deepagents.execution.local import create_local_execute_tool

execute = create_local_execute_tool()
"""

LOCAL_AGENT = """
from adk_deepagents import create_deep_agent

agent = create_deep_agent(
    name="dev_agent",
    execution="local",
)
"""

HEIMDALL = """
import asyncio
from adk_deepagents import create_deep_agent_async

async def main():
    agent, cleanup = await create_deep_agent_async(
        name="sandbox_agent",
        execution="heimdall",
    )

    # Use the agent...
    await use(agent)

    # Clean up the MCP connection when done
    if cleanup:
        await cleanup()

asyncio.run(main())
"""

STDIO = """
from adk_deepagents import create_deep_agent_async

agent, cleanup = await create_deep_agent_async(
    execution={
        "command": "npx",
        "args": ["@heimdall-ai/heimdall"],
        "env": {"HEIMDALL_WORKSPACE": "/workspace"},
    },
)
await use(agent)
await cleanup()
"""

SSE = """
from adk_deepagents import create_deep_agent_async

agent, cleanup = await create_deep_agent_async(
    execution={"uri": "http://localhost:8080"},
)
await use(agent)
await cleanup()
"""

SUBAGENTS = """
from adk_deepagents import create_deep_agent, SubAgentSpec

agent = create_deep_agent(
    subagents=[
        SubAgentSpec(
            name="researcher",
            description="Searches the codebase for relevant files and patterns.",
            system_prompt="You are a code research assistant. Search thoroughly.",
        ),
    ],
)
"""

READY_AGENT = """
from google.adk.agents import LlmAgent
from adk_deepagents import create_deep_agent

custom_agent = LlmAgent(
    name="custom",
    model="gemini-2.5-pro",
    instruction="You are a specialized agent.",
    tools=[...],
)

agent = create_deep_agent(
    subagents=[custom_agent],
)
"""


@pytest.fixture
def execute(example: Example) -> Callable[..., dict[str, Any]]:
    made: Callable[..., dict[str, Any]] = example(LOCAL_TOOL)["execute"]
    return made


@pytest.fixture
def npx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `npx` that starts an MCP server instead of loading one; it notes its process id."""
    (tmp_path / "server.py").write_text(STDIO_SERVER)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "npx"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec python3 {tmp_path}/server.py\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_the_local_tool_has_the_seeds_signature(execute: Callable[..., Any]) -> None:
    assert str(inspect.signature(execute)) == "(command: 'str') -> 'dict[str, Any]'"
    assert execute.__name__ == "execute"


def test_the_local_tool_gives_output_and_exit_code(execute: Callable[..., Any]) -> None:
    assert execute("echo hello world") == {
        "status": "success",
        "output": "hello world\n",
        "exit_code": 0,
        "truncated": False,
    }
    missing = execute("no-such-command")
    assert (missing["status"], missing["exit_code"], missing["truncated"]) == ("error", 127, False)
    assert "not found" in missing["output"]
    assert execute(" ")["status"] == "error"


def test_the_local_tool_runs_where_this_process_does(execute: Callable[..., Any]) -> None:
    assert execute("pwd")["output"] == f"{Path.cwd()}\n"


def test_the_local_tool_gives_no_key_of_this_process_away(
    execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "key-canary")
    assert "key-canary" not in execute("env")["output"]


def test_the_local_tool_cuts_a_long_output(execute: Callable[..., Any]) -> None:
    done = execute("seq 1 60000")
    assert done["truncated"] is True
    assert len(done["output"]) < 101_000


def test_the_local_tool_ends_a_command_with_all_that_it_started(
    execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fanout.orchestrator.deep_agent.execution.DEFAULT_TIMEOUT_SECONDS", 1.0)
    done = execute(f"sleep 60 & echo $! > {tmp_path}/pid; sleep 60")

    assert (done["status"], done["exit_code"]) == ("error", -1)
    assert done["output"].startswith("Command timed out after 1.0s")
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_the_local_tool_may_be_called_where_a_loop_runs(execute: Callable[..., Any]) -> None:
    async def called() -> str:
        return str(execute("echo x")["output"])

    assert asyncio.run(called()) == "x\n"


def test_execution_local_gives_a_shell(example: Example, replies: Replies) -> None:
    replies += [{"calls": [call("execute", command="pwd")]}, {"text": "ok"}]
    run = asyncio.run(converse(example(LOCAL_AGENT)["agent"]))

    assert run.results[0]["output"] == f"{Path.cwd()}\n"


@pytest.mark.parametrize("text", [HEIMDALL, STDIO])
def test_a_server_with_a_command_has_its_own_names_of_tools_and_ends(
    text: str, example: Example, replies: Replies, npx: Path
) -> None:
    replies += [{"calls": [call("shout", text="hey"), call("where")]}, {"text": "ok"}]
    results: list[dict[str, Any]] = []

    async def use(agent: Any) -> None:
        results.extend((await converse(agent)).results)

    example(text, use=use)

    assert results[0] == {"status": "success", "output": "HEY"}
    seen = results[1]["result"]
    assert seen["cwd"] == str(Path.cwd())
    assert seen["env"].get("HEIMDALL_WORKSPACE") == (None if text is HEIMDALL else "/workspace")
    assert not is_running(int((npx / "pid").read_text()))


def test_a_program_that_is_not_installed_is_named(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(McpServerFailed, match="there is no program npx on PATH; install it first"):
        example(HEIMDALL, use=None)


def test_heimdall_is_started_as_the_seed_says() -> None:
    assert json.dumps(execution.HEIMDALL) == '{"command": "npx", "args": ["@heimdall-ai/heimdall"]}'


def test_a_server_at_a_uri_speaks_by_server_sent_events(example: Example, replies: Replies) -> None:
    replies += [{"calls": [call("add", a=2, b=3)]}, {"text": "ok"}]
    results: list[dict[str, Any]] = []

    async def use(agent: Any) -> None:
        results.extend((await converse(agent)).results)

    with http_server("sse") as server:
        # the seed's port is anybody's
        example(SSE.replace("http://localhost:8080", url_of(server, "sse")), use=use)

    assert results == [{"status": "success", "result": {"result": 5}}]


def test_sub_agents_are_called_by_name(example: Example, replies: Replies) -> None:
    replies += [
        {"calls": [call("task", description="x", subagent_type=name)]}
        for name in ("researcher", "general_purpose")
    ] + [{"text": "ok"}]
    run = asyncio.run(converse(example(SUBAGENTS)["agent"]))

    assert [result["status"] for result in run.results[:1]] == ["success"]


def test_a_ready_agent_is_a_sub_agent(example: Example, replies: Replies) -> None:
    replies += [{"calls": [call("task", description="x", subagent_type="nobody")]}, {"text": "ok"}]
    # `[...]` in the seed stands for tools
    made = example(READY_AGENT.replace("tools=[...]", "tools=[]"))
    run = asyncio.run(converse(made["agent"]))

    assert "there are: custom, general-purpose" in run.results[0]["error"]


def test_many_cleanups_do_no_harm(example: Example, npx: Path) -> None:
    async def use(agent: Any) -> None:
        del agent

    example(STDIO + "\nawait cleanup()", use=use)
    assert not is_running(int((npx / "pid").read_text()))
