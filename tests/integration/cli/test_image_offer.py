"""Where an engine answers without the images of sandboxes, a person is asked what to do."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.adversarial.test_no_engine import engine
from tests.integration.cli.conftest import Fanout, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.redis]


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    """A command line whose engine has no images."""
    (tmp_path / "work").mkdir()
    environment = clean_environment(tmp_path) | {"DOCKER_HOST": f"unix://{tmp_path}/e.sock"}
    return Fanout(tmp_path / "work", environment)


def in_terminal(fanout: Fanout, *arguments: str, answer: str) -> tuple[int, str]:
    """Run a command in a terminal and type an answer when it asks; return its code and screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        Fanout.argv(*arguments), cwd=fanout.folder, env=fanout.env | {"TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    screen = b""
    try:
        while b"Choose [" not in screen:
            screen += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
        while piece := _read(ours):
            screen += piece
        return process.wait(), screen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side is closed
        return b""


def test_a_run_asks_builds_or_stops(fanout: Fanout, tmp_path: Path) -> None:
    with engine(tmp_path / "e.sock"):
        code, screen = in_terminal(fanout, "run", "goal", "--yes", answer="stop")

        assert code == 3
        assert "build: build them now (about 3 minutes)" in screen
        assert "local:" not in screen
        assert "To build them later: fanout images build" in screen

        code, screen = in_terminal(fanout, "run", "goal", "--yes", answer="1")

        assert code != 0
        assert "Building fanout/base:latest and fanout/python:latest" in screen


def test_the_demo_can_do_without_and_only_it(fanout: Fanout, tmp_path: Path) -> None:
    with engine(tmp_path / "e.sock"):
        code, screen = in_terminal(fanout, "demo", answer="local")

    assert code == 0
    assert "local: run the demo's own commands as you, isolated by nothing" in screen
    assert "tests: failed before, passed after" in screen
