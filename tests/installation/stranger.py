"""Somebody who has installed fanout and knows nothing: the commands of a first hour."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

NAMES_LIKE_OURS = ("orchestrator", "workers", "config", "tests", "sandbox_images", "docs")
SERVICES = {"docker", "dockerd", "podman", "redis-server", "valkey-server"}
"""Programs that a new machine does not have."""
UNREACHABLE = 3
STEP_SECONDS = 600.0
"""For any step on a busy machine; the longest, pip, takes half a minute on a quiet one."""
TRACEBACK = "Traceback (most recent call last)"

PROGRAM = """
import config, orchestrator, tests, workers
from fanout import JobAgent, JobClient, JobSpec, TaskToolset, create_deep_agent
from fanout.backends import FilesystemBackend
import fanout, pathlib
assert {one.OWN for one in (config, orchestrator, tests, workers)} == {"mine"}
home = pathlib.Path(fanout.__file__).parent
assert (home / "py.typed").is_file()
assert (home / "orchestrator/server/static/main.js").is_file()
print(JobSpec(agent="tester", description="hello").agent)
"""
SCRIPT = """
conversations:
  - agent: coordinator
    replies:
      - calls: [{tool: task, args: {subagent_type: general-purpose, description: make a file}}]
      - text: One file was made.
  - agent: general-purpose
    replies:
      - calls: [{tool: write_file, args: {file_path: /workspace/made.txt, content: hello}}]
      - text: Done.
"""
COMPLETED = """
eval "$(fanout completion bash)"
COMP_WORDS=(fanout imag); COMP_CWORD=1; _fanout_completion fanout; echo "${COMPREPLY[@]}"
"""


class Failed(Exception):
    """A step did not do what it should; the text has its output."""


def run(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    own_env: bool = False,
    code: int = 0,
) -> str:
    """Run a command and return its output.

    Args:
        command: The program and its arguments.
        env: Variables besides those of this process; with `own_env` the only ones.
        cwd: The folder.
        own_env: Whether this process's variables are left out.
        code: The exit code that it must have.
    """
    argv = [str(each) for each in command]
    ended = subprocess.run(
        argv,
        env={**({} if own_env else os.environ), **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS,
        check=False,
    )
    if ended.returncode != code or f"\n{TRACEBACK}" in f"\n{ended.stderr}":
        said = f"{ended.stdout}\n{ended.stderr}"
        raise Failed(f"{' '.join(argv)}: exit code {ended.returncode}, expected {code}\n{said}")
    return ended.stdout + (ended.stderr if code else "")


class Stranger:
    """A person with a home and a project, and with nothing else.

    Args:
        folder: A folder for both.
        bin_folder: Where `fanout` was installed.
    """

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self._fanout = bin_folder / "fanout"
        self._python = self._fanout.resolve().with_name("python")
        self._project = folder / "project"
        for name in NAMES_LIKE_OURS:
            (self._project / name).mkdir(parents=True)
            (self._project / name / "__init__.py").write_text("OWN = 'mine'")
        (self._project / "program.py").write_text(PROGRAM)
        (folder / "script.yaml").write_text(SCRIPT)
        home = folder / "home"
        home.mkdir()
        self._env = {
            "PATH": f"{bin_folder}:{_programs(folder / 'programs')}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "DOCKER_HOST": f"unix://{folder}/no-engine",
            "FANOUT_MODEL": f"scripted:{folder / 'script.yaml'}",
            "FANOUT_EMBEDDED_IDLE_SECONDS": "20",
        }

    def checks(self, *, runs: bool, serves: bool) -> list[Callable[[], None]]:
        """Return what is done with an installation.

        Args:
            runs: Whether jobs run, too.
            serves: Whether the demo is played and ADK's servers are started, too.
        """
        quick = [
            self.commands_tell_what_there_is,
            self.commands_for_images_say_that_no_engine_answers,
            self.a_program_imports_its_own_packages_and_ours,
            self.shells_complete_commands,
        ]
        with_jobs = [self.a_run_changes_the_folder, self.adk_runs_the_coordinator]
        with_servers = [self.the_demo_repairs_its_project, self.adk_serves_the_coordinator]
        return [
            *quick,
            *(with_jobs if runs else []),
            *(with_servers if serves else []),
            *([self.everything_is_stopped] if runs else []),
        ]

    def commands_tell_what_there_is(self) -> None:
        self._says("0.1.0", "--version")
        self._says("general-purpose", "agents")
        self._says("bakery", "example")
        self._says("quickstart", "example")
        self._says("FANOUT_REDIS_URL", "config")
        self._says("flower]'", "flower", code=2)

    def commands_for_images_say_that_no_engine_answers(self) -> None:
        self._says("Docker", "images", "ls", code=UNREACHABLE)
        self._says("Docker", "images", "build", code=UNREACHABLE)

    def a_program_imports_its_own_packages_and_ours(self) -> None:
        said = self._run(self._python, "program.py")
        _expect("tester", said)

    def shells_complete_commands(self) -> None:
        _expect("images", self._run(shutil.which("bash") or "bash", "--norc", "-c", COMPLETED))
        for shell in ("zsh", "fish"):
            self._says("_FANOUT_COMPLETE", "completion", shell)
            asked = {"_FANOUT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "fanout imag"}
            asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
            _expect("images", self._run(self._fanout, env=asked))

    def the_demo_repairs_its_project(self) -> None:
        self._says("passed", "demo")

    def a_run_changes_the_folder(self) -> None:
        self._run(self._fanout, "run", "Make a file", "--sandbox", "local")
        _expect("hello", (self._project / "made.txt").read_text())
        (self._project / "made.txt").unlink()

    def adk_runs_the_coordinator(self) -> None:
        local = {"FANOUT_SANDBOX__PROVIDER": "local"}
        said = self._run(self._fanout, "adk", "run", "--in_memory", "Make a file", env=local)
        _expect("One file was made.", said)

    def adk_serves_the_coordinator(self) -> None:
        self._says("/adk/orchestrator", "adk", "--path")
        for command in ("web", "api_server"):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            argv = [str(self._fanout), "adk", command, "--port", str(port)]
            server = subprocess.Popen(
                argv,
                cwd=self._project,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                _expect("orchestrator", _served(f"http://127.0.0.1:{port}/list-apps", server))
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=STEP_SECONDS)

    def everything_is_stopped(self) -> None:
        self._run(self._fanout, "down")

    def _says(self, expected: str, *arguments: str, code: int = 0) -> None:
        _expect(expected, self._run(self._fanout, *arguments, code=code))

    def _run(
        self, *command: str | Path, env: Mapping[str, str] | None = None, code: int = 0
    ) -> str:
        given = {**self._env, **(env or {})}
        return run(*command, env=given, cwd=self._project, own_env=True, code=code)


def _programs(folder: Path) -> Path:
    """A folder with this machine's programs but services."""
    folder.mkdir()
    for place in map(Path, ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")):
        for program in place.iterdir() if place.is_dir() else ():
            if program.name not in SERVICES and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def _served(url: str, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + STEP_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - ours
                return json.dumps(json.load(answer))
        except OSError:
            time.sleep(0.2)
    server.kill()
    raise Failed(f"{url} is not served:\n{server.communicate()[0].decode(errors='replace')}")


def _expect(expected: str, said: str) -> None:
    if expected not in said:
        raise Failed(f"expected {expected!r} in:\n{said}")
