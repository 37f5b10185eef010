"""Where an engine answers without the images of sandboxes, a person is asked what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversarial.test_no_engine import engine
from tests.integration.cli.conftest import Fanout, clean_environment
from tests.integration.cli.terminal import in_terminal

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    """A command line whose engine has no images."""
    (tmp_path / "work").mkdir()
    environment = clean_environment(tmp_path) | {
        "DOCKER_HOST": f"unix://{tmp_path}/e.sock",
        "GOOGLE_API_KEY": "no-real-key",
    }
    return Fanout(tmp_path / "work", environment)


def test_a_run_asks_builds_or_stops(fanout: Fanout, tmp_path: Path) -> None:
    with engine(tmp_path / "e.sock"):
        code, screen = in_terminal(fanout, "run", "goal", "--yes", answers={"Choose [": "stop"})

        assert code == 3
        assert "build: build them now (about 3 minutes)" in screen
        assert "local:" not in screen
        assert "To build them later: fanout images build" in screen

        code, screen = in_terminal(fanout, "run", "goal", "--yes", answers={"Choose [": "1"})

        assert code != 0
        assert "Building fanout/base:latest and fanout/python:latest" in screen


@pytest.mark.representative
def test_the_demo_can_do_without_and_only_it(fanout: Fanout, tmp_path: Path) -> None:
    with engine(tmp_path / "e.sock"):
        code, screen = in_terminal(fanout, "demo", answers={"Choose [": "local"})

    assert code == 0
    assert "local: run the demo's own commands as you, without isolation" in screen
    assert "tests: failed before, passed after" in screen
