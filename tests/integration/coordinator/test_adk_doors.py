"""ADK's own commands find the coordinator.

`adk run`, `adk api_server` and `adk web`, each as a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fanout.orchestrator.jobs.state import JobState
from tests.integration.coordinator.driving import WORKER_SCRIPT, task
from tests.integration.scripts import calls, conversation, says, shell, write_script
from tests.services import REPOSITORY, Installation, free_port
from tests.waits import eventually, eventually_in_thread

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

ADK = Path(sys.executable).parent / "adk"
IN_MEMORY = ["--session_service_uri", "memory://", "--artifact_service_uri", "memory://"]
START_SECONDS = 90


@pytest.fixture
def environment(shared_place: Installation, tmp_path: Path, workspace: Path) -> dict[str, str]:
    """A coordinator that makes two files by two jobs, or starts a long one."""
    script = write_script(
        tmp_path,
        {
            "agent": "coordinator",
            **conversation("long", calls(task("run: touch begun.txt; sleep 60")), says("too late")),
        },
        {
            "agent": "coordinator",
            **conversation(
                "",
                calls(*(task(f"run: echo {n} > {n}.txt") for n in "ab")),
                says("two files made"),
                shell("cat a.txt b.txt > c.txt"),
                says("a third file"),
            ),
        },
        *WORKER_SCRIPT,
    )
    return {
        **shared_place.environment,
        "FANOUT_MODEL": f"scripted:{script}",
        "FANOUT_WORKSPACE": str(workspace),
    }


@pytest.fixture
def embedded(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same without a Redis: one is started in the background."""
    del environment["FANOUT_REDIS_URL"]
    own = {
        "FANOUT_STATE_DIR": str(tmp_path / "own-state"),
        "FANOUT_WORKER__SHUTDOWN_GRACE_SECONDS": "1",
        "FANOUT_EMBEDDED_IDLE_SECONDS": "2",
    }
    return {**environment, **own}


def adk_run(environment: dict[str, str], goal: str) -> subprocess.CompletedProcess[str]:
    command = [str(ADK), "run", "--in_memory", "orchestrator", goal]
    return subprocess.run(
        command,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def files(workspace: Path) -> list[str]:
    return sorted(path.name for path in workspace.iterdir())


def traces_in_repository() -> set[str]:
    """What ADK may leave beside an agent: its own folder of sessions, changed files."""
    command = ["git", "status", "--porcelain", "--ignored", "orchestrator"]
    status = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    return {line[3:] for line in status.splitlines() if ".adk" in line}


def list_processes(state_folder: str) -> list[str]:
    """The processes whose environment or command names the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [
                *process.cmdline(),
                process.environ().get("FANOUT_STATE_DIR", ""),
                process.cwd(),
            ]
            if any(state_folder in word for word in words):
                found.append(f"{process.pid} {process.name()}")
    return found


@pytest.mark.slow
def test_adk_run_ends_with_the_coordinators_text(
    environment: dict[str, str], workspace: Path
) -> None:
    done = adk_run(environment, "the goal")

    assert done.returncode == 0, done.stderr
    assert "[coordinator]: two files made" in done.stdout
    assert "[task]: - ✓ **general-purpose** run: echo a > a.txt · succeeded" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert files(workspace) == ["a.txt", "b.txt", "kept.txt"]
    assert not traces_in_repository()


@pytest.mark.slow
def test_adk_run_without_a_redis_starts_one_that_ends_when_it_is_idle(
    embedded: dict[str, str], workspace: Path
) -> None:
    done = adk_run(embedded, "the goal")

    assert done.returncode == 0, done.stderr
    assert "[coordinator]: two files made" in done.stdout
    assert files(workspace) == ["a.txt", "b.txt", "kept.txt"]
    eventually_in_thread(lambda: not list_processes(embedded["FANOUT_STATE_DIR"]))


class AdkServer:
    """One of ADK's servers as a process, and its REST interface."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.log = log
        self.http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)

    async def ready(self) -> list[str]:
        """Its apps, once it answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return list((await self.http.get("/list-apps")).json())
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                await asyncio.sleep(0.1)

    async def run_sse(self, session_id: str, goal: str) -> AsyncGenerator[dict[str, Any]]:
        """The events of a turn as they come."""
        await self.http.post(f"/apps/orchestrator/users/u/sessions/{session_id}", json={})
        message = {"role": "user", "parts": [{"text": goal}]}
        body = {
            "appName": "orchestrator",
            "userId": "u",
            "sessionId": session_id,
            "newMessage": message,
        }
        async with self.http.stream("POST", "/run_sse", json={**body, "streaming": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def adk_server(command: str, environment: dict[str, str], folder: Path) -> Iterator[AdkServer]:
    port = free_port()
    log = folder / "adk.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(ADK), command, "--port", str(port), *IN_MEMORY, "orchestrator"],
            env=environment,
            cwd=REPOSITORY,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield AdkServer(process, f"http://127.0.0.1:{port}", log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


@pytest.fixture
def api_server(environment: dict[str, str], tmp_path: Path) -> Iterator[AdkServer]:
    with adk_server("api_server", environment, tmp_path) as server:
        yield server


@pytest.fixture
def embedded_web(embedded: dict[str, str], tmp_path: Path) -> Iterator[AdkServer]:
    with adk_server("web", embedded, tmp_path) as server:
        yield server


@pytest.mark.slow
async def test_a_second_message_continues_and_a_reader_that_leaves_stops_nothing(
    api_server: AdkServer, shared_place: Installation, workspace: Path
) -> None:
    assert await api_server.ready() == ["orchestrator"]
    events = [event async for event in api_server.run_sse("same-id", "the goal")]
    progress = [event for event in events if event.get("partial") and event["author"] == "task"]
    jobs = {event["customMetadata"]["job_id"] for event in progress}
    assert len(jobs) == 2
    (kept,) = [event for event in events if event["author"] == "task" and event not in progress]
    lines = kept["content"]["parts"][0]["text"].splitlines()
    assert [line.rpartition(" · ")[2] for line in lines] == ["succeeded", "succeeded"]
    assert all(line.startswith("- ✓ **general-purpose** run: echo ") for line in lines)
    assert "two files made" in texts_of(events)
    assert files(workspace) == ["a.txt", "b.txt", "kept.txt"]

    events = [event async for event in api_server.run_sse("same-id", "now another")]
    assert "a third file" in texts_of(events)
    assert (workspace / "c.txt").read_text() == "a\nb\n"  # it had the files of the first

    async with contextlib.aclosing(api_server.run_sse("other", "long")) as stream:
        async for event in stream:
            if event.get("partial") and event["author"] == "task":
                break
    child = event["customMetadata"]["job_id"]
    async with shared_place.client() as client:
        await asyncio.sleep(1)
        assert (await client.get(child)).state is JobState.RUNNING
        await client.cancel((await client.get(child)).root_id)
    assert not traces_in_repository()
    assert "Traceback" not in api_server.log.read_text()


def texts_of(events: list[dict[str, Any]]) -> list[str]:
    return [
        part.get("text", "")
        for event in events
        for part in event.get("content", {}).get("parts", [])
    ]


@pytest.mark.slow
async def test_adk_web_killed_without_a_word_leaves_no_process(
    embedded_web: AdkServer, embedded: dict[str, str]
) -> None:
    assert await embedded_web.ready() == ["orchestrator"]
    _ = [event async for event in embedded_web.run_sse("s", "the goal")]
    assert list_processes(embedded["FANOUT_STATE_DIR"])
    os.kill(embedded_web.process.pid, signal.SIGKILL)

    await eventually(lambda: not list_processes(embedded["FANOUT_STATE_DIR"]))
