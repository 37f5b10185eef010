"""Real coding agents, configured by `fanout mcp install`, hand a task to fanout and apply it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.coding_agents import PACKAGES, SAID, TASK, Script, install_program, model_server
from tests.fixtures import place_fixture
from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, call, calls, conversation
from tests.model_service import model_service
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = conversation(
    TASK,
    calls(call("write_file", file_path="/workspace/notes.md", content="written\n")),
    DONE,
)
GOAL = "Have the notes written."
RUN_SECONDS = 150
NOT_THE_CLIENTS = ("FANOUT_", "CLAUDE", "CODEX", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_")


@dataclass(frozen=True)
class Program:
    """How a program is run without a person, on a model server."""

    client: str
    """Its name for `fanout mcp install`."""
    command: Callable[[str], list[str]]
    """Its arguments, given the model server's address."""
    environment: Callable[[str], dict[str, str]]
    configuration: Callable[[str, Path], None] = lambda _url, _home: None
    """Writes what `fanout mcp install` does not: its model."""


def _configure_opencode(url: str, home: Path) -> None:
    path = home / ".config" / "opencode" / "opencode.json"
    document = json.loads(path.read_text())
    document["provider"] = {
        "loopback": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {"scripted": {"tool_call": True}},
        }
    }
    path.write_text(json.dumps(document))


def _configure_gemini(_url: str, home: Path) -> None:
    path = home / ".gemini" / "settings.json"
    document = json.loads(path.read_text())
    document["security"] = {"auth": {"selectedType": "gemini-api-key"}}
    path.write_text(json.dumps(document))


PROGRAMS = {
    "codex": Program(
        client="codex",
        command=lambda url: [
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("-c", 'model="gpt-5"', "-c", 'model_provider="loopback"'),
            *(
                "-c",
                f'model_providers.loopback={{name="l",base_url="{url}/v1",wire_api="responses"}}',
            ),
            GOAL,
        ],
        environment=lambda _url: {},
    ),
    "gemini": Program(
        client="gemini",
        command=lambda _url: ["--approval-mode", "yolo", "-m", "gemini-2.5-pro", "-p", GOAL],
        environment=lambda url: {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_TELEMETRY_ENABLED": "false",
        },
        configuration=_configure_gemini,
    ),
    "opencode": Program(
        client="opencode",
        command=lambda _url: ["run", "-m", "loopback/scripted", GOAL],
        environment=lambda _url: {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        configuration=_configure_opencode,
    ),
    "claude": Program(
        client="claude-code",
        command=lambda _url: ["-p", GOAL, "--allowedTools", "mcp__fanout"],
        environment=lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",
        },
    ),
}


place = place_fixture(SCRIPT, scope="module", workers=1)


@pytest.fixture(scope="session")
def cache() -> Path:
    """Where the programs are kept between runs: they are large."""
    if shutil.which("npm") is None:
        pytest.skip("There is no npm.")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "fanout-tests" / "coding-agents"


@pytest.fixture(params=sorted(PROGRAMS))
def program(request: pytest.FixtureRequest, cache: Path) -> tuple[Program, Path]:
    name = request.param
    try:
        return PROGRAMS[name], install_program(name, cache)
    except subprocess.SubprocessError:
        pytest.skip("npm cannot install it here.")


@pytest.fixture
def model() -> Iterator[tuple[str, Script]]:
    with model_server() as made:
        yield made


def test_a_program_lists_the_tools_submits_waits_reads_the_patch_and_applies_it(
    program: tuple[Program, Path],
    model: tuple[str, Script],
    place: Installation,
    tmp_path: Path,
) -> None:
    (kind, path), (url, script) = program, model
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / "README.md").write_text("A project.\n")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(NOT_THE_CLIENTS)
    }
    ours = {name: value for name, value in place.environment.items() if name.startswith("FANOUT_")}
    environment = {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    environment["PWD"] = str(project)  # opencode believes it
    settings = home / ".config" / "fanout"  # a client need not pass on its environment
    settings.mkdir(parents=True)
    (settings / ".env").write_text("".join(f"{name}={value}\n" for name, value in ours.items()))
    installed = subprocess.run(
        [sys.executable, "-m", "fanout", "mcp", "install", "--client", kind.client],
        env=environment, cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    kind.configuration(url, home)

    done = subprocess.run(
        [path, *kind.command(url)],
        env={**environment, **kind.environment(url)},
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )

    told = f"{done.stdout}\n{done.stderr}\n{script}"
    assert done.returncode == 0, told
    assert script.tools == {"submit_job", "wait_job", "get_patch", "apply_patch"}, told
    assert [*dict.fromkeys(script.called)] == [
        "submit_job",
        "wait_job",
        "get_patch",
        "apply_patch",
    ], told
    assert SAID in done.stdout, told
    assert (project / "notes.md").read_text() == "written\n", told


def test_claude_codes_worktree_begins_with_what_a_job_changed(
    cache: Path, place: Installation, tmp_path: Path
) -> None:
    try:
        claude = install_program("claude", cache)
    except subprocess.SubprocessError:
        pytest.skip("npm cannot install it here.")
    home, project = tmp_path / "home", tmp_path / "project"
    (project / ".claude").mkdir(parents=True)
    home.mkdir()
    page = (REPOSITORY / "docs" / "mcp.md").read_text()
    section = page.partition("## Claude Code's worktrees")[2]
    hook, script = (
        section.split(f"```{kind}\n", 1)[1].partition("```")[0] for kind in ("text", "sh")
    )
    (project / ".claude" / "settings.json").write_text(hook)
    (project / ".claude" / "fanout-worktree.sh").write_text(script)
    (project / "README.md").write_text("A project.\n")
    folder = Path(sys.executable).parent
    environment = {
        **{one: value for one, value in place.environment.items() if not one.startswith("CLAUDE")},
        "HOME": str(home), "PATH": f"{folder}:{os.environ['PATH']}",
    }  # fmt: skip

    def run(*command: str | Path, **more: str) -> str:
        done = subprocess.run(
            command, env={**environment, **more}, cwd=project, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("git", "init", "-q")
    run("git", "add", ".")
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Begin")
    job = run("fanout", "submit", TASK, "--workspace", ".")
    run("fanout", "wait", job)
    with model_service() as (port, _):
        said = run(
            claude, "--worktree", job, "-p", "Do it.\nRUN: cat notes.md > seen.txt\nSAY: Seen.",
            "--allowedTools", "Bash",
            **PROGRAMS["claude"].environment(f"http://127.0.0.1:{port}"),
        )  # fmt: skip

    assert said.endswith("Seen.")
    worktree = project / ".claude" / "worktrees" / job
    assert (worktree / "seen.txt").read_text() == "written\n"
    assert not (project / "notes.md").exists()


def test_every_program_has_a_pinned_package() -> None:
    assert PROGRAMS.keys() == PACKAGES.keys()
