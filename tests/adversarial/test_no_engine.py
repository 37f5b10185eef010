"""Without a Docker engine, its images or the right to use it nothing runs unisolated by itself."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fanout.orchestrator.client.state_folder import StateFolder
from tests.conftest import missing
from tests.integration.cli.conftest import Ended, Fanout, clean_environment
from tests.integration.scripts import conversation, says, write_script
from tests.waits import without_waits

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]

STARTERS = ("run goal --yes", "example quickstart", "up", "worker")
"""All commands that start what could run a job's commands."""


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    """A command line without a Redis and without a choice of a sandbox."""
    script = write_script(tmp_path, conversation("", says("done")))
    environment = clean_environment(tmp_path) | {
        "DOCKER_HOST": f"unix://{tmp_path}/nowhere.sock",
        "FANOUT_MODEL": f"scripted:{script}",
    }
    (tmp_path / "work").mkdir()
    return Fanout(tmp_path / "work", environment)


def refused(fanout: Fanout, command: str, code: int, *prefix: str) -> str:
    """The one sentence with which a command refuses, before it makes anything."""
    env = {"FANOUT_REDIS_URL": "redis://127.0.0.1:1"} if command == "worker" else {}
    if prefix:
        done = subprocess.run(
            [*prefix, *Fanout.argv(*command.split())],
            cwd=fanout.folder,
            env=fanout.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        ended = Ended(done.returncode, done.stdout, without_waits(done.stderr))
    else:
        ended = fanout(*command.split(), env=env)
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert "--sandbox local" in ended.err
    state = Path(fanout.env["FANOUT_STATE_DIR"])
    assert not (state / "blobs").exists()
    assert StateFolder(state).read_record() is None
    assert list(fanout.folder.iterdir()) == []
    return ended.err


@pytest.mark.parametrize("command", STARTERS)
def test_without_an_engine_a_command_refuses_and_says_how_to_get_one(fanout: Fanout, command: str):
    assert "start Docker" in refused(fanout, command, 3)


def test_without_rights_a_command_refuses_as_not_allowed(fanout: Fanout, tmp_path: Path):
    path = tmp_path / "closed.sock"
    fanout.env["DOCKER_HOST"] = f"unix://{path}"
    prefix = without_roots_rights()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        engine.listen()
        path.chmod(0)
        assert "group" in refused(fanout, "up", 4, *prefix)


def without_roots_rights() -> list[str]:
    """What makes a command obey the modes of files, though it runs as root."""
    if os.geteuid() != 0:
        return []
    prefix = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        missing("Root's rights cannot be dropped here.")
    return prefix


class EngineServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    hangs_at = "nowhere"


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine without images that hangs where its server says."""

    server: EngineServer

    def do_GET(self) -> None:
        if self.server.hangs_at in self.path:
            time.sleep(600)
            return
        is_version = self.path.endswith("/version")
        body = json.dumps({"ApiVersion": "1.43"} if is_version else {"message": "none"}).encode()
        self.send_response(200 if is_version else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a test"

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def engine(path: Path, hangs_at: str = "nowhere") -> Iterator[None]:
    with EngineServer(str(path), Engine) as server:
        server.hangs_at = hangs_at
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@pytest.mark.parametrize("command", STARTERS)
def test_without_the_images_a_command_says_how_to_build_them(
    fanout: Fanout, command: str, tmp_path: Path
):
    fanout.env["DOCKER_HOST"] = f"unix://{tmp_path}/e.sock"
    with engine(tmp_path / "e.sock"):
        assert "fanout images build" in refused(fanout, command, 3)


@pytest.mark.parametrize("hangs_at", ["version", "images"])
def test_an_engine_that_hangs_is_told_in_time(fanout: Fanout, tmp_path: Path, hangs_at: str):
    fanout.env["DOCKER_HOST"] = f"unix://{tmp_path}/e.sock"
    with engine(tmp_path / "e.sock", hangs_at):
        sentence = refused(fanout, "run goal --yes", 3)

    assert "does not answer" in sentence or "did not" in sentence


@pytest.mark.slow
def test_a_worker_started_as_a_program_does_not_start_either(fanout: Fanout, redis_url: str):
    env = fanout.env | {"FANOUT_REDIS_URL": redis_url}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fanout.workers"],
        env=env,
        cwd=fanout.folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 3
    assert "No Docker engine answers" in done.stderr


def test_no_setting_makes_it_choose_by_itself(fanout: Fanout):
    ended = fanout("up", env={"FANOUT_SANDBOX__PROVIDER": "auto"})

    assert ended.code == 2
    assert "'docker' or 'local'" in ended.err


@pytest.mark.slow
def test_a_persons_word_is_enough_and_counts_for_its_own_services_only(fanout: Fanout):
    started = fanout("up", "--no-serve", "--sandbox", "local", timeout=90)
    try:
        again = fanout("up", "--no-serve", timeout=90)
        other = fanout("run", "goal", "--yes", timeout=90)
        same = fanout("run", "goal", "--yes", "--sandbox", "local", timeout=90)
    finally:
        fanout("down", timeout=90)

    assert (started.code, same.code, same.out.strip()) == (0, 0, "done")
    assert "WARNING" in started.err
    for ended in (again, other):
        assert (ended.code, ended.out) == (2, "")
        assert "'local', but 'docker' is requested" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.slow
def test_killed_services_come_back_with_the_sandbox_that_they_had_or_not_at_all(fanout: Fanout):
    assert fanout("up", "--no-serve", "--sandbox", "local", timeout=90).code == 0
    try:
        path = Path(fanout.env["FANOUT_STATE_DIR"]) / "embedded.json"
        record = json.loads(path.read_text())
        for process in ("worker_pid", "redis_pid"):
            os.kill(record[process], signal.SIGKILL)
        path.write_text(json.dumps(record | {"sandbox": "docker"}))
        refusal = fanout("submit", "x", timeout=90)
        path.write_text(json.dumps(record))
        revived = fanout("submit", "x", "--wait", timeout=90)
    finally:
        fanout("down", timeout=90)

    assert (refusal.code, refusal.out) == (3, "")
    assert "No Docker engine answers" in refusal.err.splitlines()[-1]
    assert revived.code == 0, revived.err


@pytest.mark.slow
def test_the_demo_alone_runs_its_own_commands_and_says_so(fanout: Fanout):
    ended = fanout("demo", timeout=90)
    refused(fanout, "demo --sandbox docker", 3)

    assert ended.code == 0
    assert "No Docker engine answers" in ended.err
    assert "The demo's own commands run without it." in ended.err
    assert "WARNING" in ended.err
