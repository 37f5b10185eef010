"""The configuration file of a command, and how its keys reach all processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Fanout
from tests.loopback import LoopbackHandler, loopback_server

KEY = "AIza-of-the-dotenv"


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A configuration file that is named, not found."""
    path = tmp_path / "elsewhere" / "mine.toml"
    path.parent.mkdir()
    path.write_text('model = "gemini-2.5-flash"\n[sandbox]\nprovider = "local"\n')
    return path


@pytest.mark.parametrize("before", [True, False])
def test_the_option_stands_before_and_after_the_command(
    lonely_fanout: Fanout, configuration: Path, before: bool
):
    option = ["--config", "elsewhere/mine.toml"]
    words = [*option, "config", "--json"] if before else ["config", "--json", *option]

    shown = {one["name"]: one for one in lonely_fanout(*words).json["settings"]}

    assert shown["FANOUT_SANDBOX__PROVIDER"] == {
        "name": "FANOUT_SANDBOX__PROVIDER",
        "value": "local",
        "source": str(configuration),
    }


@pytest.mark.parametrize("command", ["ps", "worker", "run x", "doctor --security"])
def test_a_file_that_is_not_there_is_told_in_one_sentence(lonely_fanout: Fanout, command: str):
    ended = lonely_fanout(*command.split(), "--config", "gone.toml")

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert "gone.toml" in ended.err


class Gemini(LoopbackHandler):
    """Notes the key of each request, and refuses it."""

    keys: set[str]

    def post(self) -> None:
        self.keys.add(self.headers.get("x-goog-api-key", "none"))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        error = {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}
        self.send_json(400, {"error": error})


@pytest.fixture
def gemini() -> Iterator[tuple[str, set[str]]]:
    """The address of a model's service, and the keys that it saw."""
    keys: set[str] = set()
    handler = type("Handler", (Gemini,), {"keys": keys})
    with loopback_server(handler, str) as url:
        yield url, keys


@pytest.mark.redis
@pytest.mark.slow
def test_keys_beside_the_file_reach_the_coordinator_and_the_embedded_worker(
    lonely_fanout: Fanout, configuration: Path, gemini: tuple[str, set[str]]
):
    url, keys = gemini
    (configuration.parent / ".env").write_text(
        f"GOOGLE_API_KEY={KEY}\nGOOGLE_GEMINI_BASE_URL={url}\n"
    )
    option = ("--config", str(configuration))
    started = lonely_fanout("up", "--no-serve", *option, timeout=60)
    try:
        ran = lonely_fanout("run", "x", "--yes", *option, timeout=60)
        of_the_coordinator = set(keys)
        keys.clear()
        waited = lonely_fanout("submit", "x", "--wait", *option, timeout=60)
    finally:
        lonely_fanout("down", *option, timeout=30)

    assert started.code == 0, started.err
    assert (ran.code, waited.code) == (1, 1)
    assert of_the_coordinator == {KEY}
    assert keys == {KEY}
    assert KEY not in started.err + ran.err + waited.err + waited.out
