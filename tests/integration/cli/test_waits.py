"""No command is silent for long: in a pipe it says what it waits for, and says it seldom."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fanout.orchestrator.cli.terminal import waiting as waits
from tests.integration.cli.conftest import Child, Fanout, StandIn
from tests.waits import without_waits

pytestmark = pytest.mark.redis

MINE = "MINE"
"""Stands for the id of a job that no worker takes."""

JOB_COMMANDS = {
    ("run", "hi", "--no-land", "--yes", "--model", "scripted:none"): "Still queued",
    ("submit", "hi", "--wait", "--model", "scripted:none"): "Still queued",
    ("wait", MINE): "Still queued",
    ("watch", MINE): "Still queued",
    ("attach", MINE): "Still queued",
    ("logs", "-f", MINE): "Still waiting for the next event of",
}

SILENT_COMMANDS = {
    ("ps",): "Still waiting for Redis",
    ("tell", "x", "hi"): "Still waiting for Redis",
    ("retry", "x"): "Still waiting for Redis",
    ("apply", "x"): "Still waiting for Redis",
    ("keys", "ls"): "Still waiting for Redis",
    ("worker",): "Still waiting for the Docker engine",
    ("images", "ls"): "Still waiting for the Docker engine",
    ("images", "build"): "Still waiting for the Docker engine",
    ("doctor",): "Still (checking the agents and their models|asking the Docker engine)",
    ("init", "--no-run", "--base-url", "URL"): "Still asking URL for its models",
}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def first_wait(child: Child) -> str:
    """The first line of a command's stderr that says what it waits for."""
    assert child.stderr is not None
    before = b""
    for line in child.stderr:
        if not without_waits(line.decode()):
            return line.decode().rstrip()
        before += line
    raise AssertionError(f"It ended without a word about what it waited for: {before.decode()}")


def next_change(child: Child) -> str:
    """The next line of a command's stderr that says something else."""
    assert child.stderr is not None
    return next(line.decode() for line in child.stderr if without_waits(line.decode()))


def test_a_command_that_waits_for_a_job_says_what_the_job_does(fanout: Fanout) -> None:
    mine = fanout("submit", "wait for nobody").out.strip()
    with ExitStack() as stack:
        children = {}
        for command in JOB_COMMANDS:
            named = [mine if part == MINE else part for part in command]
            children[command] = child = fanout.start(*named)
            stack.callback(child.kill)

        said = {command: first_wait(child) for command, child in children.items()}

    wrong = {
        command: line for command, line in said.items() if not re.match(JOB_COMMANDS[command], line)
    }
    assert not wrong


def test_a_command_whose_service_does_not_answer_says_which(
    lonely_fanout: Fanout, silent_port: int
) -> None:
    address = f"127.0.0.1:{silent_port}"
    env = {
        "FANOUT_REDIS_URL": f"redis://{address}/0",
        "DOCKER_HOST": f"tcp://{address}",
        "FANOUT_SANDBOX__PROVIDER": "docker",
        "XDG_CONFIG_HOME": str(lonely_fanout.folder / "home"),
    }
    with ExitStack() as stack:
        children = {}
        for command in SILENT_COMMANDS:
            named = [f"http://{address}" if part == "URL" else part for part in command]
            children[command] = child = lonely_fanout.start(*named, env=env)
            stack.callback(child.kill)

        said = {command: first_wait(child) for command, child in children.items()}

    wrong = {
        command: line
        for command, line in said.items()
        if not re.match(SILENT_COMMANDS[command], line.replace(f"http://{address}", "URL"))
    }
    assert not wrong


async def test_each_change_is_one_line_and_a_job_that_had_ended_is_none(
    fanout: Fanout, stand_in: StandIn
) -> None:
    job_id = (await asyncio.to_thread(fanout, "submit", "first")).out.strip()
    child = fanout.start("wait", job_id)
    try:
        queued = await asyncio.to_thread(next_change, child)
        claim = await stand_in.claim(job_id)
        running = await asyncio.to_thread(next_change, child)
        await stand_in.finish(job_id, claim=claim, summary="done")
        assert child.stderr is not None
        rest = without_waits((await asyncio.to_thread(child.stderr.read)).decode())
    finally:
        child.kill()
    again = await asyncio.to_thread(fanout, "wait", job_id)

    assert queued.split()[:2] == [job_id[-8:], "queued"]
    assert running.split()[:2] == [job_id[-8:], "running"]
    assert [line.split()[1] for line in rest.splitlines()] == ["succeeded", "0"], rest
    assert again.err.splitlines()[0].startswith("Total:"), again.err


def test_only_the_innermost_wait_speaks_and_nobody_while_a_person_is_asked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.3)
    said = ""

    with waits.waiting("doing much"):
        with waits.speaking():
            capfd.readouterr()
            time.sleep(0.6)
            while_asked = capfd.readouterr().err
        with waits.waiting("reading a file"):
            while "reading a file" not in said:
                time.sleep(0.01)
                said += capfd.readouterr().err

    assert while_asked == ""
    assert all(line.startswith("Still ") for line in said.splitlines())
