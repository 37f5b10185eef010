"""`fanout init`: what it asks, what it writes, and that the run at its end works."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Ended, Fanout, clean_environment
from tests.integration.cli.terminal import in_terminal
from tests.integration.models.local_servers import NAME, Kind, local_server
from tests.integration.models.model_server import Answer, call, model_server
from tests.integration.scripts import conversation, says, write_script
from tests.waits import without_waits

KEY = "AIza-not-a-real-key"


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    """A command line of somebody who has configured nothing yet."""
    (tmp_path / "work").mkdir()
    environment = clean_environment(tmp_path) | {
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "DOCKER_HOST": f"unix://{tmp_path}/nowhere.sock",
        "FANOUT_EMBEDDED_IDLE_SECONDS": "1",
    }
    for name in ("FANOUT_CONFIG", "FANOUT_SANDBOX__PROVIDER", "GOOGLE_API_KEY"):
        environment.pop(name, None)
    return Fanout(tmp_path / "work", environment)


def with_key(fanout: Fanout, *arguments: str, key: str = KEY) -> Ended:
    done = subprocess.run(
        Fanout.argv("init", "--key-stdin", *arguments), cwd=fanout.folder, env=fanout.env,
        input=f"{key}\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, without_waits(done.stderr))


def configuration(fanout: Fanout) -> Path:
    return Path(fanout.env["XDG_CONFIG_HOME"]) / "fanout"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_options_write_everything_and_the_key_is_for_its_owner_only(fanout: Fanout) -> None:
    folder = configuration(fanout)
    folder.mkdir(parents=True)
    (folder / ".env").write_text("OTHER=1\nGOOGLE_API_KEY=old\n")
    (folder / ".env").chmod(0o644)

    ended = with_key(fanout, "--sandbox", "local", "--no-run")

    assert ended.code == 0, ended.err
    assert KEY not in ended.out + ended.err
    assert ended.out.splitlines() == [
        f"Wrote {folder / name}" for name in (".env", "config.toml", "agents/explainer.yaml")
    ]
    assert (folder / ".env").read_text() == f"OTHER=1\nGOOGLE_API_KEY='{KEY}'\n"
    assert mode(folder / ".env") == 0o600
    shown = fanout("config", "--json").json["settings"]
    values = {one["name"]: one["value"] for one in shown}
    assert values["FANOUT_SANDBOX__PROVIDER"] == "local"
    assert "explainer" in fanout("agents").out


@pytest.mark.slow
def test_what_exists_is_not_replaced_without_a_word(fanout: Fanout) -> None:
    folder = configuration(fanout)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('log_level = "error"\n')

    ended = with_key(fanout, "--no-run")

    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--force" in ended.err
    assert [path.name for path in folder.iterdir()] == ["config.toml"]
    assert "error" in (folder / "config.toml").read_text()
    assert with_key(fanout, "--no-run", "--force").code == 0
    assert "error" not in (folder / "config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "key", "said"),
    [
        (("--model", "gemni"), KEY, "Unknown model: gemni."),
        ((), "two words", "That is not a key"),
        ((), "", "That is not a key"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    fanout: Fanout, arguments: tuple[str, ...], key: str, said: str
) -> None:
    ended = with_key(fanout, "--no-run", *arguments, key=key)

    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert said in ended.err
    assert key == "" or "words" not in ended.err
    assert not configuration(fanout).exists()


def test_without_a_terminal_and_a_key_it_says_how_to_give_one(fanout: Fanout) -> None:
    ended = fanout("init", "--no-run")

    assert ended.code == 2
    assert ended.err == (
        "gemini-2.5-flash needs GOOGLE_API_KEY in the environment. "
        "Or pipe it: fanout init --key-stdin < FILE\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_person_is_asked_and_the_key_is_not_shown(fanout: Fanout) -> None:
    code, screen = in_terminal(
        fanout,
        "init",
        answers={
            "Model [gemini-2.5-flash]:": "gemni",
            "Unknown model: gemni": "",
            "GOOGLE_API_KEY:": KEY,
            "Choose [docker]:": "local",
            "Make a first run now?": "n",
        },
    )

    assert code == 0, screen
    assert "No Docker engine answers" in screen
    assert KEY not in screen
    assert KEY in (configuration(fanout) / ".env").read_text()
    assert 'provider = "local"' in (configuration(fanout) / "config.toml").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_person_chooses_among_the_models_of_a_server_by_number_or_by_name(
    fanout: Fanout,
) -> None:
    several = {"object": "list", "data": [{"id": "first:1b"}, {"id": NAME}, {"id": "third"}]}
    with local_server(Kind(models=several)) as server:
        address = f"{server.url}/v1"
        code, screen = in_terminal(
            fanout, "init", "--sandbox", "local", "--no-run",
            answers={"Model [gemini-2.5-flash]:": server.url, "Model of the server [first:1b]:": "2"},
        )  # fmt: skip
        again, named = in_terminal(
            fanout, "init", "--sandbox", "local", "--no-run", "--force", "--base-url", server.url,
            answers={"Model of the server [first:1b]:": "third"},
        )  # fmt: skip
    asked = [request["model"] for request in server.requests]

    assert (code, again) == (0, 0), screen + named
    assert f"{address} has 3 models:" in screen
    assert f"2  {NAME}" in screen
    assert "streaming works, tools work." in screen
    assert asked == [NAME, "third"]
    assert 'model = "chat/third"' in (configuration(fanout) / "config.toml").read_text()
    assert address in (configuration(fanout) / ".env").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("model", "refusals", "named", "variable"),
    [
        ("claude-x", 0, "chat/claude-x", "OPENAI_BASE_URL"),
        ("claude-x", 1, "claude-x", "ANTHROPIC_BASE_URL"),
        ("gemini-x", 1, "gemini-x", "GOOGLE_GEMINI_BASE_URL"),
    ],
)
def test_a_server_is_asked_through_the_protocol_that_works(
    fanout: Fanout, model: str, refusals: int, named: str, variable: str
) -> None:
    answers = [*[Answer(status=404)] * refusals, Answer([call("report_ready")])]
    with model_server(answers) as server:
        ended = fanout(
            *("init", "--base-url", server.url, "--model", model, "--sandbox", "local"),
            "--no-run",
            timeout=200,
        )
        address = f"{server.url}/v1" if variable == "OPENAI_BASE_URL" else server.url

    assert ended.code == 0, ended.err
    assert f'model = "{named}"' in (configuration(fanout) / "config.toml").read_text()
    assert f"{variable}='{address}'" in (configuration(fanout) / ".env").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.redis
def test_it_ends_with_a_run_that_works(fanout: Fanout, tmp_path: Path) -> None:
    answer = "It is the kitchen of a bakery."
    script = write_script(tmp_path, conversation("", says(answer)))

    ended = fanout("init", "--model", f"scripted:{script}", "--sandbox", "local", "--yes")

    assert ended.code == 0, ended.err
    assert answer in ended.out
    assert "It works." in ended.err
    fanout("down")
