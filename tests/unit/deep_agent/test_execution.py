"""`create_deep_agent(execution=…)`: a shell of this machine, or a server whose tools execute."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.adk.events.event import Event
from google.genai import types

from fanout.orchestrator.deep_agent.backends import processes
from fanout.orchestrator.deep_agent.backends.composite import CompositeBackend
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend, FilesystemBackend
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_agent_async
from fanout.orchestrator.deep_agent.execution import LocalExecution
from fanout.orchestrator.deep_agent.failures import AmbiguousTool, McpServerFailed
from fanout.orchestrator.deep_agent.tools.execute import with_ended_processes
from fanout.orchestrator.portable.commands import find_shell
from tests.integration.scripts import call, says
from tests.mcp_servers import STDIO_SERVER, http_server, url_of
from tests.unit.deep_agent.instructions import instructions
from tests.unit.deep_agent.running import Run, scripted
from tests.unit.deep_agent.talking import recorder, seen
from tests.waits import eventually


@pytest.fixture
def stdio_server(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "server.py").write_text(STDIO_SERVER)
    return {"command": sys.executable, "args": [str(tmp_path / "server.py")]}


async def make_result(made: dict[str, Any], **agent: Any) -> dict[str, Any]:
    run = Run(scripted([{"calls": [made]}, says("done")]), **agent)
    try:
        return (await run.to_end()).results[0]
    finally:
        for tool in run.app.root_agent.tools:
            if hasattr(tool, "close"):
                await tool.close()


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_the_local_shell_starts_in_the_folder_of_the_files(tmp_path: Path) -> None:
    files = FilesystemBackend(tmp_path)
    done = await make_result(call("execute", command="pwd"), backend=files, execution="local")
    assert done["output"] == f"{tmp_path}\n"


@pytest.mark.parametrize("with_files", [True, False])
async def test_the_model_is_told_which_files_the_local_shell_sees(
    with_files: bool, tmp_path: Path
) -> None:
    backend = DirectoryBackend(tmp_path) if with_files else None
    (heard,) = await instructions(backend=backend, execution="local")

    assert ("does not see the files of the file tools" in heard) is not with_files
    assert (f"starts in {tmp_path}: this is the folder" in heard) is with_files
    assert "in a shell on the same files" not in heard


async def test_a_folder_has_its_real_path_where_a_shell_sees_it_too(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    (tmp_path / "more.md").write_text("Be brief.")
    (heard,) = await instructions(
        backend=FilesystemBackend(tmp_path),
        execution="local",
        memory=["./AGENTS.md", "/more.md"],
    )

    assert f'<memory_file path="{tmp_path}/AGENTS.md">\nUse tabs.' in heard
    assert f'<memory_file path="{tmp_path}/more.md">\nBe brief.' in heard


async def test_general_purpose_agents_have_the_local_shell_and_overwrite_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    parent = scripted(
        [{"calls": [call("task", description="one"), call("task", description="two")]}, says("ok")]
    )
    child = recorder("child", [{"calls": [call("execute", command="echo x >> a.txt")]}, says("ok")])
    general = {"name": "general-purpose", "description": "Anything.", "model": child}
    run = Run(parent, backend=FilesystemBackend(tmp_path), execution="local", subagents=[general])
    results = (await run.to_end()).results

    assert [result["status"] for result in results] == ["success", "success"]
    assert (tmp_path / "a.txt").read_text() == "one\nx\n"


@pytest.mark.parametrize("with_files", [True, False])
async def test_a_whole_output_is_read_by_the_file_tools_and_by_the_shell(
    with_files: bool, tmp_path: Path
) -> None:
    files = LocalExecution(
        DirectoryBackend(tmp_path) if with_files else StateBackend(DictState()),
        LocalShellBackend(tmp_path),
    )
    done = await files.execute("seq 1 60000", 60, 1_000)
    assert done.output_file is not None
    path = done.output_file.path

    assert (await files.read_bytes(path, 4)) == b"1\n2\n"
    assert (await files.execute(f"head -n 2 {path}", 60, 1_000)).text == "1\n2\n"
    found = await files.grep("59999", path, only=None, max_hits=9, timeout_seconds=9)
    assert [hit.line for hit in found.hits] == ["59999"]
    assert not [entry for entry in await files.list("/") if entry.path == "/var"]


async def test_the_local_shell_goes_with_a_factory(tmp_path: Path) -> None:
    done = await make_result(
        call("execute", command="pwd"),
        backend=lambda _: FilesystemBackend(tmp_path),
        execution="local",
    )
    assert done["output"] == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"execution": "docker"}, "There is no execution 'docker'; give 'local', 'heimdall'"),
        ({"execution": {}}, "either a command or a uri"),
        ({"execution": {"command": "x", "uri": "http://x"}}, "either a command or a uri"),
        ({"execution": {"command": "x", "cwd": "/"}}, "command has no cwd; it has args, command"),
        ({"execution": {"uri": "http://x", "env": {}}}, "uri has no env; it has headers"),
        ({"execution": {"uri": "http://x", "transport": "tcp"}}, "transport is sse or http"),
        ({"execution": {"command": "x", "args": "one two"}}, "args is a list of strings"),
    ],
)
def test_a_wrong_execution_is_refused_with_what_is_right(
    options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        create_deep_agent(scripted([says("x")]), **options)


def test_files_with_a_shell_and_another_shell_are_refused(tmp_path: Path) -> None:
    shell = LocalShellBackend(tmp_path)
    for backend in (shell, CompositeBackend(shell, {"/m": StateBackend(DictState())})):
        with pytest.raises(ValueError, match="has a shell of its own"):
            create_deep_agent(scripted([says("x")]), backend=backend, execution="local")


async def test_a_server_is_connected_without_the_asynchronous_factory_too(
    stdio_server: dict[str, Any],
) -> None:
    assert (await make_result(call("shout", text="hey"), execution=stdio_server))["output"] == "HEY"


async def test_a_server_may_speak_http() -> None:
    with http_server() as running:
        done = await make_result(
            call("add", a=1, b=1), execution={"uri": url_of(running), "transport": "http"}
        )
    assert done["result"] == {"result": 2}


async def test_what_a_server_says_when_it_does_not_start_is_in_the_error(
    stdio_server: dict[str, Any],
) -> None:
    stdio_server["args"].append("--broken")
    with pytest.raises(McpServerFailed, match="exit code 1: cannot find my settings"):
        await create_deep_agent_async(scripted([says("x")]), execution=stdio_server)


async def test_a_server_gets_none_of_this_process_keys(
    stdio_server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "key-canary")
    stdio_server["env"] = {"GIVEN": "yes"}
    given = (await make_result(call("where"), execution=stdio_server))["result"]["env"]

    assert given["GIVEN"] == "yes"
    assert "SOME_API_KEY" not in given


async def test_a_server_cannot_take_the_name_of_another_tool(stdio_server: dict[str, Any]) -> None:
    async def shout(text: str) -> str:
        """Say it loud, guarded."""
        return text

    agent, cleanup = await create_deep_agent_async(
        scripted([says("x")]), [shout], execution=stdio_server
    )
    assert cleanup is not None
    with pytest.raises(AmbiguousTool, match="Two tools are named shout"):
        await make_result(call("shout", text="x"), tools=[shout], execution=stdio_server)
    await cleanup()
    assert agent.tools


async def test_the_general_purpose_agent_has_what_the_main_agent_has(
    stdio_server: dict[str, Any],
) -> None:
    parent = scripted([{"calls": [call("task", description="shout")]}, says("done")])
    child = recorder("child", [{"calls": [call("shout", text="hey")]}, says("shouted")])
    general = {"name": "general-purpose", "description": "Anything.", "model": child}
    run = Run(parent, subagents=[general], execution=stdio_server)
    try:
        await run.to_end()
    finally:
        for tool in run.app.root_agent.tools:
            if hasattr(tool, "close"):
                await tool.close()
    assert '"output":"HEY"' in seen(child)


async def test_an_agent_with_nothing_to_close_has_no_cleanup() -> None:
    agent, cleanup = await create_deep_agent_async(scripted([says("x")]), name="plain")
    assert (agent.name, cleanup) == ("plain", None)


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    program = tmp_path / "slow"
    program.write_text(f"#!/bin/sh\ncd {tmp_path}\necho $$ > new\nmv new pid\nexec sleep 60\n")
    program.chmod(0o755)
    starting = asyncio.create_task(
        create_deep_agent_async(scripted([says("x")]), execution={"command": str(program)})
    )
    await eventually(lambda: asyncio.to_thread((tmp_path / "pid").exists))
    starting.cancel()
    await asyncio.wait({starting})

    pid = (await asyncio.to_thread((tmp_path / "pid").read_text)).strip()
    assert not await asyncio.to_thread(Path(f"/proc/{pid}/cmdline").exists)


STUBBORN = "trap '' TERM; echo $$ > new; mv new pid; while :; do sleep 0.05; done"


async def test_a_command_whose_caller_is_cancelled_again_leaves_no_process(tmp_path: Path) -> None:
    running = asyncio.create_task(LocalShellBackend(tmp_path).execute(STUBBORN, 60, 1000))
    await eventually(lambda: asyncio.to_thread((tmp_path / "pid").exists))
    running.cancel()
    await asyncio.sleep(0.1)
    running.cancel()  # as the end of an event loop does
    await asyncio.wait({running})

    await _ended(tmp_path / "pid")


async def test_a_command_whose_caller_is_cancelled_again_while_it_starts_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, start = threading.Event(), processes.start

    def slow(launch: processes.Launch) -> processes.RunningCommand:
        started = start(launch)
        may_go_on.wait()
        return started

    monkeypatch.setattr(processes, "start", slow)
    running = asyncio.create_task(LocalShellBackend(tmp_path).execute(STUBBORN, 60, 1000))
    await eventually(lambda: asyncio.to_thread((tmp_path / "pid").exists))
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0.05)
    may_go_on.set()
    await asyncio.wait({running})

    await _ended(tmp_path / "pid")


async def _ended(file: Path) -> None:
    """Wait for the end of the process that a file names, which only a kill ends."""
    pid = int(await asyncio.to_thread(file.read_text))
    await eventually(lambda: asyncio.to_thread(ended, pid))


@pytest.mark.parametrize("has_shell", [True, False])
async def test_a_step_makes_no_task_for_each_tool(has_shell: bool, tmp_path: Path) -> None:
    backend = LocalShellBackend(tmp_path) if has_shell else DirectoryBackend(tmp_path)
    few = await _tasks_of_a_run(backend=backend, built_in_tools=["ls", "execute"])
    all_tools = await _tasks_of_a_run(backend=backend)
    assert all_tools == few


async def _tasks_of_a_run(**agent: Any) -> int:
    """Return how many tasks a run of one step makes."""
    made, loop = 0, asyncio.get_running_loop()

    def counted(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        nonlocal made
        made += 1
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(counted)
    try:
        await Run(scripted([says("done")]), **agent).to_end()
    finally:
        loop.set_task_factory(None)
    return made


def test_without_bash_commands_are_for_sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bash").mkdir()
    is_file = os.path.isfile
    monkeypatch.setattr(
        os.path, "isfile", lambda path: path.startswith(f"{tmp_path}/") and is_file(path)
    )

    assert find_shell(f"{tmp_path}:relative:") == ("/bin/sh", "-c")

    (tmp_path / "bash").rmdir()
    (tmp_path / "bash").touch(mode=0o755)
    assert find_shell(str(tmp_path))[0] == f"{tmp_path}/bash"


def test_a_resumed_conversation_says_that_no_process_is_left() -> None:
    ran = {"output": "started", "background": "Still running: 12 (server). Stop with: kill 12."}
    before = Event(
        author="user",
        content=types.Content(
            role="user",
            parts=[
                types.Part.from_function_response(name="execute", response=response)
                for response in (ran, {"output": "other"})
            ],
        ),
    )

    first, second = with_ended_processes(before).get_function_responses()

    assert first.response is not None
    assert first.response["background"].startswith("Nothing of this is running any more")
    assert "12 (server)" in first.response["background"]
    assert second.response == {"output": "other"}
    assert before.get_function_responses()[0].response == ran
