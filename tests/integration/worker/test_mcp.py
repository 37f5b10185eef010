"""MCP servers of agents on workers: at a URL, and inside the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from tests import odd_mcp_server
from tests.builders import make_spec
from tests.built_in_tools import failed, one_call_each
from tests.fixtures import DOCKER_SLOWLY
from tests.integration.scripts import DONE, call, calls, conversation, says
from tests.mcp_servers import STDIO_SERVER, HttpServer, http_server, url_of
from tests.services import Installation, Installer
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

KEY = "canary-mcp-key-5513"
REPORT = says("## Summary\n{{last_result}}")

SCRIPT = (
    conversation("add", calls(call("calc__add", a=20, b=22)), REPORT),
    conversation("shout", calls(call("files__shout", text="hello")), REPORT),
    conversation("look", calls(call("files__where")), REPORT),
    conversation(
        "everything",
        *(calls(step) for step in one_call_each("/workspace").values()),
        calls(call("files__flood", size=100_000)),
        DONE,
    ),
    conversation("odd", calls(call("odd__promises", k="text")), REPORT),
    conversation("hang", calls(call("files__sleep", seconds=1000)), REPORT),
)

HEAD = "name: {name}\ndescription: Uses tools of servers.\ninstruction: Do it.\nmcp_servers:\n"
FILES = "- {{name: files, command: [python3, {path}], env: {{MINE: literal}}}}\n"


def make_agents(url: str) -> dict[str, str]:
    calc = f"- name: calc\n  url: {url}\n  headers: {{authorization: 'Bearer ${{CALC_KEY}}'}}\n"
    definitions = {
        "both": calc + FILES.format(path="server.py"),
        "remote": calc,
        "greedy": calc + "  tools: [add, multiply]\n",
        "keyless": calc.replace("CALC_KEY", "NO_SUCH_KEY"),
        "odd": "- {name: odd, command: [python3, odd.py, table.json]}\n",
        "broken": FILES.format(path="no-such-file.py"),
    }
    return {name: HEAD.format(name=name) + servers for name, servers in definitions.items()}


@pytest.fixture(scope="module")
def http() -> Iterator[HttpServer]:
    with http_server(wanted=("authorization", f"Bearer {KEY}")) as server:
        yield server


@pytest.fixture(scope="module", params=DOCKER_SLOWLY)
def place(
    request: pytest.FixtureRequest, install_for_module: Installer, http: HttpServer
) -> Installation:
    return install_for_module.below(request.param)(
        *SCRIPT,
        agents=make_agents(url_of(http)),
        workers=1,
        FANOUT_SANDBOX__PROVIDER=request.param,
        FANOUT_LOG_LEVEL="debug",
        CALC_KEY=KEY,
        NO_PROXY="127.0.0.1",
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "server.py").write_text(STDIO_SERVER)
    odd_mcp_server.write_process(folder)
    return folder


async def run(place: Installation, workspace: Path, description: str, agent: str) -> JobResult:
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec(description, agent=agent), workspace=workspace)
        return await client.wait(job_id, 60)


async def test_a_server_at_a_url_is_called_from_the_worker(
    place: Installation, workspace: Path
) -> None:
    result = await run(place, workspace, "add", "remote")

    assert result.success, place.workers[0].tail()
    assert '"result": 42' in result.summary


async def test_a_server_with_a_command_runs_inside_the_sandbox(
    place: Installation, workspace: Path
) -> None:
    result = await run(place, workspace, "look", "both")

    assert result.success, place.workers[0].tail()
    assert '"MINE": "literal"' in result.summary
    assert KEY not in result.summary
    assert "CALC_KEY" not in result.summary
    if result.sandbox == "docker":
        assert '"cwd": "/workspace"' in result.summary
        assert "FANOUT_REDIS_URL" not in result.summary


async def test_every_built_in_tool_works_beside_tools_of_servers(
    place: Installation, workspace: Path
) -> None:
    result = await run(place, workspace, "everything", "both")

    assert result.success, place.workers[0].tail()
    events = await events_of(place, result.job_id)
    results = [answer["result"] for event in events for answer in event.get("results") or ()]
    tools = [*one_call_each(""), "much"]
    assert failed(dict(zip(tools, results, strict=True))) == []


async def test_an_odd_tool_is_left_out_and_the_journal_says_so(
    place: Installation, workspace: Path
) -> None:
    result = await run(place, workspace, "odd", "odd")

    assert result.success, place.workers[0].tail()
    assert '"output": "said"' in result.summary
    assert "take the text as its result" in result.summary
    events = await events_of(place, result.job_id)
    said = {str(event.get("text")) for event in events if event.get("stream") == "mcp"}
    assert said == {
        f"mcp server odd: its tool {name} is left out: {reason}."
        for name, reason in odd_mcp_server.LEFT_OUT.items()
    }


async def events_of(place: Installation, job_id: str) -> list[dict[str, Any]]:
    async with place.client() as client:
        return [event.data async for event in client.events(job_id, follow=False)]


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("greedy", "mcp server calc did not start: it has no tool multiply; it has add"),
        ("keyless", "mcp server calc did not start: its header authorization needs NO_SUCH_KEY"),
        ("broken", "mcp server files did not start: it ended with exit code 2: "),
    ],
)
async def test_a_server_that_does_not_start_ends_the_job_at_once(
    place: Installation, workspace: Path, agent: str, reason: str
) -> None:
    result = await run(place, workspace, "add", agent)

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert reason in result.error.message
    assert not result.error.retryable
    assert result.attempts == 1


async def test_a_server_that_is_back_for_the_second_attempt_is_used(
    place: Installation, workspace: Path, http: HttpServer
) -> None:
    http.statuses[:] = [
        503,
        503,
    ]  # of the question what the server speaks, and of the older greeting

    result = await run(place, workspace, "add", "remote")

    assert result.success, result.error
    assert result.attempts == 2
    assert '"result": 42' in result.summary


async def test_a_cancelled_job_leaves_no_server(
    place: Installation, client: JobClient, workspace: Path
) -> None:
    job_id = await client.submit(make_spec("hang", agent="both"), workspace=workspace)
    await until_event(client, job_id, lambda event: "files__sleep" in str(event.data))
    await client.cancel(job_id)
    result = await client.wait(job_id, 60)

    assert result.state is JobState.CANCELLED
    assert await asyncio.to_thread(servers_of, place) == []


def servers_of(place: Installation) -> list[str]:
    """Processes of servers in sandboxes of this installation.

    Those in containers are seen from here, too.
    """
    running = (
        path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if b"server.py" in _read(path)
    )
    mine = (str(place.folder).encode(), place.identity.encode())
    return [
        path.name
        for path in running
        if any(word in _read(path / "mountinfo") + _read(path / "environ") for word in mine)
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_the_key_is_found_nowhere(
    place: Installation, workspace: Path, http: HttpServer
) -> None:
    http.seen.clear()
    told = await run(place, workspace, "add", "remote")
    http.wanted = ("authorization", "another key")  # it now refuses, and repeats the request
    try:
        refused = await run(place, workspace, "add", "remote")
    finally:
        http.wanted = ("authorization", f"Bearer {KEY}")
    async with place.client() as client:
        journal = [
            event.model_dump_json()
            for result in (told, refused)
            async for event in client.events(result.job_id, follow=False)
        ]

    assert any(KEY in seen.get("authorization", "") for seen in http.seen)
    assert refused.error is not None
    assert "mcp server calc did not start: it answered HTTP 401" in refused.error.message
    shown = told.model_dump_json() + refused.model_dump_json() + str(journal)
    assert KEY not in shown + place.workers[0].log.read_text()
    # Folders of the jobs are removed meanwhile, which `walk` does not mind.
    found = (Path(folder, name) for folder, _, names in os.walk(place.folder) for name in names)
    kept = [path for path in found if path.is_file() and KEY.encode() in _read(path)]
    assert kept == []
