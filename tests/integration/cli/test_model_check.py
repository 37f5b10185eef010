"""What a job's models lack is said before anything is started or submitted for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.client.state_folder import EmbeddedRecord, StateFolder
from tests.integration.cli.conftest import Fanout, clean_environment

LEAD = "name: lead\ndescription: Leads.\nsubagents: [helper]\ninstruction: Lead.\nmodel: {model}\n"
HELPER = "name: helper\ndescription: Helps.\ninstruction: Help.\nmodel: claude-x\n"


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    (tmp_path / "work").mkdir()
    (tmp_path / "agents").mkdir()
    (tmp_path / "replies.yaml").write_text("conversations: []\n")
    scripted = f"scripted:{tmp_path}/replies.yaml"
    (tmp_path / "agents" / "lead.yaml").write_text(LEAD.format(model=scripted))
    (tmp_path / "agents" / "helper.yaml").write_text(HELPER)
    environment = clean_environment(tmp_path) | {
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "FANOUT_AGENTS_DIR": str(tmp_path / "agents"),
        "FANOUT_STATE_DIR": str(tmp_path / "state"),
    }
    for name in list(environment):
        if name.endswith(("_API_KEY", "_BASE_URL")) or name in {
            "FANOUT_CONFIG",
            "FANOUT_REDIS_URL",
        }:
            del environment[name]
    return Fanout(tmp_path / "work", environment)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "hi"), "gemini-2.5-flash needs GOOGLE_API_KEY in the environment."),
        (("run", "hi", "--model", "groq/x"), "groq/x needs GROQ_API_KEY in the environment."),
        (("example", "quickstart", "--model", "gpt-5"), "gpt-5 needs OPENAI_API_KEY"),
        (("run", "hi", "--agent", "lead"), "Agent helper: claude-x needs ANTHROPIC_API_KEY"),
        (("run", "hi", "--model", "qwen3:8b"), "Unknown model: qwen3:8b."),
        (("run", "hi", "--model", "gpt-5,groq/x"), "gpt-5 needs OPENAI_API_KEY"),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused_with_the_command_that_sets_it_up(
    fanout: Fanout, command: tuple[str, ...], said: str
) -> None:
    ended = fanout(*command)

    assert ended.code == 2
    assert ended.err.startswith(said)
    assert ended.err.endswith("Set it up: fanout init\n")
    assert ended.err.count("\n") == 1
    assert not Path(fanout.env["FANOUT_STATE_DIR"]).exists()


def test_a_job_for_the_worker_of_this_machine_is_checked_before_it_is_submitted(
    fanout: Fanout,
) -> None:
    folder = StateFolder(Path(fanout.env["FANOUT_STATE_DIR"]))
    folder.prepare()
    addresses = {"redis_url": "redis://127.0.0.1:9/0", "blobs_url": "file:///nowhere"}
    folder.write_record(EmbeddedRecord(**addresses, redis_pid=None, worker_pid=None, kept=True))

    ended = fanout("submit", "hi")

    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "gemini-2.5-flash needs GOOGLE_API_KEY in the environment. Set it up: fanout init\n"
    )


def test_a_server_on_this_machine_that_does_not_listen_is_named(fanout: Fanout) -> None:
    address = "http://127.0.0.1:9/v1"
    ended = fanout("run", "hi", "--model", "chat/x", env={"OPENAI_BASE_URL": address})

    assert ended.code == 2
    assert f"no server listens at {address} (OPENAI_BASE_URL)" in ended.err


def test_what_a_worker_elsewhere_has_is_not_guessed(fanout: Fanout) -> None:
    ended = fanout("submit", "hi", env={"FANOUT_REDIS_URL": "redis://127.0.0.1:9/0"})

    assert ended.code == 3
    assert "GOOGLE_API_KEY" not in ended.err
