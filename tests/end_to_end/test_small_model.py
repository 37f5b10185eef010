"""A run with a small real model, on every interface that its server has, ends with its cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.small_model import NAME, small_model
from tests.integration.cli.conftest import Fanout, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(420)]

AGENT = """\
name: plain
description: Answers.
tools: [ls, read_file]
instruction: Answer in one sentence.
limits: {timeout_seconds: 240, max_model_calls: 4}
"""


@pytest.fixture(scope="module")
def model_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with small_model(tmp_path_factory.mktemp("server") / "log") as url:
        yield url


@pytest.fixture
def fanout(tmp_path: Path) -> Iterator[Fanout]:
    work = tmp_path / "work"
    work.mkdir()
    (work / "note.txt").write_text("Bread is baked at six.\n")
    environment = clean_environment(tmp_path) | {
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "FANOUT_SANDBOX__PROVIDER": "local",
        "FANOUT_EMBEDDED_IDLE_SECONDS": "5",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    for name in ("FANOUT_CONFIG", "FANOUT_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        environment.pop(name, None)
    person = Fanout(work, environment)
    yield person
    person("down")


def test_a_person_sets_it_up_with_its_address_and_runs_it(fanout: Fanout, model_url: str) -> None:
    bare = model_url.removeprefix("http://")
    made = fanout("init", "--base-url", bare, "--sandbox", "local", "--no-run", timeout=120)
    assert made.code == 0, made.err
    assert f"has one model: {NAME}" in made.err
    assert f"chat/{NAME} answered in " in made.err
    home = Path(fanout.env["XDG_CONFIG_HOME"]) / "fanout"
    assert f"OPENAI_BASE_URL='{model_url}/v1'" in (home / ".env").read_text()
    (home / "agents" / "plain.yaml").write_text(AGENT)
    _ends_with_a_cause(fanout)


@pytest.mark.parametrize(
    ("model", "variable", "path"),
    [
        (f"openai/{NAME}", "OPENAI_BASE_URL", "/v1"),
        (f"responses/{NAME}", "OPENAI_BASE_URL", "/v1"),
        (f"claude-{NAME}", "ANTHROPIC_BASE_URL", ""),
    ],
)
def test_whatever_it_says_the_run_ends_within_its_budget_and_says_why(
    fanout: Fanout, model_url: str, model: str, variable: str, path: str
) -> None:
    agents = Path(fanout.env["XDG_CONFIG_HOME"]) / "fanout" / "agents"
    agents.mkdir(parents=True)
    (agents / "plain.yaml").write_text(AGENT)
    fanout.env[variable] = f"{model_url}{path}"
    _ends_with_a_cause(fanout, "--model", model)


def _ends_with_a_cause(fanout: Fanout, *options: str) -> None:
    ended = fanout(
        "run", "When is bread baked?", "--agent", "plain", "--no-land", *options, timeout=300
    )
    last = ended.err.splitlines()
    print(ended.err, ended.out)
    assert "Traceback" not in ended.err
    assert "object has no attribute" not in ended.err
    assert any("model call" in line for line in last)
    if ended.code == 0:
        assert ended.out.strip()
        return
    assert ended.code in {1, 5}
    causes = ("model", "reply", "answer", "limit", "call", "time")
    assert any(cause in line for line in last[-6:] for cause in causes), ended.err
