"""`fanout mcp install`: an entry gets into a client's file, and nothing else in it changes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fanout.orchestrator.cli.app import app
from fanout.orchestrator.extras import mcp_clients
from fanout.orchestrator.extras.mcp_clients import CLIENTS

ENTRY = {"command": "fanout", "args": ["mcp", "serve"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / ".codex"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["mcp", "install", *arguments])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_file_that_does_not_exist_is_made_and_a_second_time_changes_nothing(
    client: str, home: Path
) -> None:
    first = install("--client", client, "--workspace", str(home))
    assert first.exit_code == 0, first.output
    path = Path(first.stdout.strip())
    before = path.read_bytes(), path.stat().st_ino

    assert install("--client", client, "--workspace", str(home)).exit_code == 0

    assert path.is_relative_to(home)
    assert path.stat().st_mode & 0o077 == 0
    assert (path.read_bytes(), path.stat().st_ino) == before


@pytest.mark.parametrize("client", [name for name in CLIENTS if CLIENTS[name].remote])
def test_an_entry_by_url_names_the_variable_of_the_key(client: str, home: Path) -> None:
    printed = install("--client", client, "--url", "https://f.example", "--key-variable", "MINE")

    text = Path(printed.stdout.strip()).read_text()
    assert "https://f.example/mcp" in text
    assert "MINE" in text


@pytest.mark.parametrize(
    ("client", "fields"),
    [
        ("codex", {"required": True, "startup_timeout_sec": 60, "tool_timeout_sec": 120}),
        ("opencode", {"timeout": 120_000}),
        ("gemini", {"timeout": 120_000}),
        ("claude-code", {"timeout": 120_000}),
    ],
)
@pytest.mark.parametrize("url", [(), ("--url", "https://f.example")])
def test_an_entry_says_that_the_client_waits_and_how_long(
    client: str, fields: dict[str, int | bool], url: tuple[str, ...], home: Path
) -> None:
    path = Path(install("--client", client, *url).stdout.strip())

    text = path.read_text()
    read: Any = tomllib.loads if path.suffix == ".toml" else json.loads
    entry = read(text)[CLIENTS[client].section]["fanout"]
    assert fields.items() <= entry.items()
    assert path.is_relative_to(home)


def test_everything_else_in_a_json_file_stays(home: Path) -> None:
    path = home / ".claude.json"
    others = {"theme": "dark", "naïve": [1, 2.5, None], "mcpServers": {"other": {"command": "x"}}}
    path.write_text(json.dumps(others, indent=4, ensure_ascii=False))
    path.chmod(0o640)
    link = home / "real.json"
    path.rename(link)
    path.symlink_to(link)

    assert install("--client", "claude-code").exit_code == 0

    written = json.loads(path.read_text())
    assert written["mcpServers"].pop("fanout")["args"][-2:] == ["mcp", "serve"]
    assert written == others
    assert path.is_symlink()
    assert link.stat().st_mode & 0o777 == 0o640
    assert '\n    "theme"' in path.read_text()
    assert "naïve" in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        '{\n  // my servers\n  "mcpServers": {}\n}',
        '{"mcpServers": {},}',
        '{"mcpServers": []}',
        '{"a": 1, "a": 2}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        "[]",
    ],
)
def test_a_json_file_that_would_lose_something_stays_and_the_text_is_printed(
    text: str, home: Path
) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(text)

    refused = install("--client", "cursor")

    assert refused.exit_code == 1
    assert path.read_text() == text
    assert "is unchanged, because" in refused.stderr
    assert "fanout" in json.loads(refused.stdout)["mcpServers"]


def test_comments_and_order_of_a_toml_file_stay_and_an_old_entry_is_replaced() -> None:
    ours, other = '[mcp_servers.fanout]\nurl = "old"\n\n', '[mcp_servers.b] # keep\ncommand = "b"\n'
    text = f'# mine\nmodel = "m"\n\n{ours}{other}'

    written = mcp_clients.put_toml_entry(text, "mcp_servers", "fanout", ENTRY)

    assert written.startswith('# mine\nmodel = "m"\n\n[mcp_servers.b] # keep\ncommand = "b"\n')
    assert tomllib.loads(written)["mcp_servers"] == {"fanout": ENTRY, "b": {"command": "b"}}
    assert mcp_clients.put_toml_entry(written, "mcp_servers", "fanout", ENTRY) == written


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        "mcp_servers = 1",
        'mcp_servers = { fanout = { url = "x" } }',
        '[mcp_servers.fanout]\nurl = "x"\n[mcp_servers.fanout.env]\nA = "b"\n',
        'mcp_servers.fanout.url = "x"\n',
    ],
)
def test_a_toml_file_that_would_lose_something_is_refused(text: str) -> None:
    with pytest.raises(mcp_clients.NotMergeable):
        mcp_clients.put_toml_entry(text, "mcp_servers", "fanout", ENTRY)


def test_a_file_that_another_program_changed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("theirs")

    with pytest.raises(mcp_clients.NotMergeable, match="just changed"):
        mcp_clients.replace(path, "mine", "new")

    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "theirs"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--client", "cursr"], "Did you mean cursor?"),
        (["--client", "claude-desktop"], "--workspace DIR"),
        (["--client", "claude-desktop", "--url", "https://f.example"], "connector"),
        (["--client", "windsurf", "--scope", "project"], "no file for a project"),
        (["--client", "codex", "--url", "ftp://f"], "is not like"),
        (["--client", "codex", "--url", "https://key@f.example"], "is not like"),
        (
            ["--client", "codex", "--url", "https://f", "--key-variable", "a b"],
            "not the name of a variable",
        ),
        (["--client", "codex", "--name", "a.b"], "letters"),
        (["--client", "codex", "--workspace", "no-such-folder"], "is not a folder"),
    ],
)
def test_what_cannot_be_installed_is_refused_with_a_sentence(
    arguments: list[str], told: str, home: Path
) -> None:
    refused = install(*arguments)

    assert refused.exit_code == 2
    assert told in refused.stderr
    assert list(home.iterdir()) == []
