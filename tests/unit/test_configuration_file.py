"""Where settings come from, and which source wins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fanout.orchestrator.cli.commands.configuration import effective_settings
from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder, and a working directory that is not it."""
    made = tmp_path / "xdg" / "fanout"
    made.mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return made


def test_nothing_of_the_working_directory_is_read(folder: Path):
    work = Path()
    for name in ("config", ".fanout", "fanout", ".config/fanout", "agents"):
        (work / name).mkdir(parents=True)
    for name in (".env", "config/.env", ".config/fanout/.env"):
        (work / name).write_text("FANOUT_MODEL=gpt-evil\nGOOGLE_API_KEY=evil\n")
    for name in ("config/fanout.toml", "fanout.toml", "config.toml", ".fanout/config.toml",
                 "fanout/config.toml", ".config/fanout/config.toml"):  # fmt: skip
        (work / name).write_text('model = "gpt-evil"\n')

    settings = load_settings()

    assert (settings.model, settings.agents_dir) == ("gemini-2.5-flash", None)
    assert "GOOGLE_API_KEY" not in os.environ


def test_environment_wins_over_dotenv_and_dotenv_over_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "config.toml").write_text(
        'model = "gpt-c"\nlog_level = "error"\nretention_seconds = 5\n'
    )
    (folder / ".env").write_text("FANOUT_MODEL=gpt-b\nFANOUT_LOG_LEVEL=warning\n")
    monkeypatch.setitem(os.environ, "FANOUT_MODEL", "gpt-a")

    settings = load_settings()

    found = (settings.model, settings.log_level, settings.retention_seconds)
    assert found == ("gpt-a", "warning", 5)
    sources = {name: source for name, _, source in effective_settings(settings)}
    assert sources["FANOUT_MODEL"] == "environment"
    assert sources["FANOUT_LOG_LEVEL"] == str(folder / ".env")
    assert sources["FANOUT_RETENTION_SECONDS"] == str(folder / "config.toml")
    assert sources["FANOUT_TENANTS"] == "default"


def test_keys_beside_the_file_reach_the_environment_but_replace_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "given")
    (folder / ".env").write_text("OPENAI_API_KEY=file\nANTHROPIC_API_KEY=key\nFANOUT_X=1\nEMPTY=\n")

    load_settings()

    assert os.environ["OPENAI_API_KEY"] == "given"
    assert os.environ["ANTHROPIC_API_KEY"] == "key"
    inherited = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert "ANTHROPIC_API_KEY" not in inherited
    assert not {"FANOUT_X", "EMPTY"} & set(os.environ)


def test_paths_in_the_files_are_relative_to_their_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "config.toml").write_text(
        'state_dir = "state"\nmodel = "scripted:script.yaml"\nblobs_url = "blobs"\n'
        '[sandbox]\nca_file = "ca.pem"\n'
    )
    (folder / ".env").write_text("FANOUT_WORKSPACE=sample\n")
    monkeypatch.setitem(os.environ, "FANOUT_AGENTS_DIR", "mine")

    settings = load_settings()

    assert settings.state_dir == folder / "state"
    assert settings.model == f"scripted:{folder / 'script.yaml'}"
    assert settings.blobs_url == (folder / "blobs").as_uri()
    assert settings.workspace == folder / "sample"
    assert settings.sandbox.ca_file == folder / "ca.pem"
    assert settings.agents_dir == Path.cwd() / "mine"


def test_agents_beside_the_file_are_used_unless_a_setting_names_others(folder: Path):
    (folder / "agents").mkdir()
    assert load_settings().agents_dir == folder / "agents"

    (folder / "config.toml").write_text('agents_dir = "others"\n')
    assert load_settings().agents_dir == folder / "others"


def test_another_file_replaces_all_that_is_beside_the_default_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "config.toml").write_text('model = "gpt-default"\n')
    (folder / ".env").write_text("FANOUT_LOG_LEVEL=error\n")
    named = tmp_path / "named.toml"
    named.write_text('model = "gpt-named"\n')
    monkeypatch.setitem(os.environ, "FANOUT_CONFIG", "../named.toml")

    settings = load_settings()

    assert (settings.model, settings.log_level) == ("gpt-named", "info")


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_named_file_that_cannot_be_read_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setitem(os.environ, "FANOUT_CONFIG", str(folder / name))

    with pytest.raises(InvalidSetting, match=r"missing\.toml|fanout cannot be read"):
        load_settings()


def test_a_file_that_is_not_toml_is_an_error_that_names_it(folder: Path):
    (folder / "config.toml").write_text("model =\n")

    with pytest.raises(InvalidSetting, match=r"config\.toml"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.toml", b'# one\nmodel = "caf\xe9"\n', r"config\.toml: line 2 is not UTF-8: save"),
        (".env", b"# one\nFANOUT_MODEL=caf\xe9\n", r"\.env: line 2 is not UTF-8: save"),
        ("config.toml", rb'model = "\ud800"', r"config\.toml cannot be read: .* line 1"),
    ],
)
def test_a_file_with_text_that_utf_8_cannot_hold_is_an_error_that_names_it(
    folder: Path, name: str, content: bytes, words: str
):
    (folder / name).write_bytes(content)

    with pytest.raises(InvalidSetting, match=words):
        load_settings()


def test_a_setting_that_does_not_exist_is_an_error_that_names_it(folder: Path):
    (folder / "config.toml").write_text('modell = "gemini-2.5-pro"\n')

    with pytest.raises(InvalidSetting, match=r"config\.toml:1: .* 'modell'\. Did you mean model\?"):
        load_settings()


@pytest.mark.parametrize("base", ["", ".", "relative"])
def test_a_relative_xdg_folder_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch, base: str):
    monkeypatch.setitem(os.environ, "XDG_CONFIG_HOME", base)
    monkeypatch.setitem(os.environ, "HOME", ".")
    for place in ("fanout", "relative/fanout", ".config/fanout"):
        Path(place).mkdir(parents=True)
        (Path(place) / "config.toml").write_text('model = "gpt-evil"\n')

    assert load_settings().model == "gemini-2.5-flash"
