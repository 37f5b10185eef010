"""`up`, `down`, `worker` and `flower`: real child processes."""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fanout.orchestrator.embedded.state_folder import StateFolder
from tests.integration.cli.conftest import Fanout
from tests.integration.cli.test_embedded import within

pytestmark = pytest.mark.redis

LOCAL = {"FANOUT_SANDBOX__PROVIDER": "local"}


def test_up_leaves_a_worker_that_later_commands_find_and_down_stops_it(lonely_fanout: Fanout):
    started = lonely_fanout("up", env=LOCAL, timeout=90)
    try:
        again = lonely_fanout("up", env=LOCAL, timeout=90)
        job_id = lonely_fanout("submit", "x", "--model", "scripted:absent.yaml").out.strip()
        waited = lonely_fanout("wait", job_id, "--timeout", "30", timeout=60)
    finally:
        stopped = lonely_fanout("down", timeout=60)

    assert (started.code, again.code, stopped.code) == (0, 0, 0)
    assert started.out.startswith("Started")
    assert "FANOUT_SANDBOX__PROVIDER is local. That isolates nothing" in started.err
    assert "Docker" not in started.err
    assert again.out.startswith("Already running")
    assert waited.code == 1
    assert "failed" in waited.out
    assert lonely_fanout("ps").code == 3
    assert StateFolder(lonely_fanout.folder / "state").read_record() is None


@pytest.mark.slow
def test_two_ups_at_once_start_one_redis(lonely_fanout: Fanout):
    both = [
        subprocess.Popen(Fanout.argv("up"), cwd=lonely_fanout.folder, env=lonely_fanout.env | LOCAL)
        for _ in "ab"
    ]
    try:
        codes = [child.wait(90) for child in both]
        workers = lonely_fanout("doctor", "--json", env=LOCAL, timeout=60)
    finally:
        lonely_fanout("down", timeout=60)

    assert codes == [0, 0]
    assert '"1 alive"' in workers.out


def test_a_worker_that_does_not_start_is_told_with_its_last_words(lonely_fanout: Fanout):
    bad_agents = lonely_fanout.folder / "agents"
    bad_agents.mkdir()
    env = LOCAL | {"FANOUT_AGENTS_DIR": str(bad_agents)}
    (bad_agents / "x.yaml").write_text("name: x\ncolour: red\n")

    ended = lonely_fanout("up", env=env, timeout=90)

    assert ended.code in (2, 3)
    assert "colour" in ended.err
    assert "Traceback" not in ended.err
    lonely_fanout("down", timeout=60)


@pytest.mark.slow
def test_a_worker_runs_in_the_foreground_until_sigterm(fanout: Fanout):
    child = subprocess.Popen(
        Fanout.argv("worker", "--concurrency", "3"),
        cwd=fanout.folder,
        env=fanout.env | LOCAL,
        stderr=subprocess.PIPE,
    )
    try:
        assert within(30, lambda: '"1 alive"' in fanout("doctor", "--json", env=LOCAL).out)
    finally:
        child.send_signal(signal.SIGTERM)
        code = child.wait(30)
    assert code == 0


@pytest.mark.slow
def test_flower_wants_a_password_and_lets_nobody_act(fanout: Fanout):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = subprocess.Popen(
        Fanout.argv("flower"),
        cwd=fanout.folder,
        env=fanout.env | {"FANOUT_FLOWER__PORT": str(port)},
        stderr=subprocess.PIPE,
    )
    try:
        assert child.stderr is not None
        announced = child.stderr.readline().decode()
        login = announced.rsplit(" ", 1)[1].strip()
        assert within(30, lambda: status_of(port, "/", None) == 401)

        assert login not in Path(f"/proc/{child.pid}/cmdline").read_text()
        assert status_of(port, "/tasks", login) == 200
        assert status_of(port, "/tasks", "fanout:wrong") == 401
        assert status_of(port, "/api/worker/shutdown/x", login, method="POST") == 403
        assert re.match(r"fanout:\S{12,}$", login)
    finally:
        child.terminate()
        child.wait(20)


@pytest.mark.slow
def test_flower_takes_the_password_of_its_own_variable_or_says_what_it_looks_like(fanout: Fanout):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    refused = fanout("flower", env={"FLOWER_BASIC_AUTH": "nopassword"})
    assert (refused.code, refused.out) == (2, "")
    assert "user:password" in refused.err
    assert "nopassword" not in refused.err
    own = {"FANOUT_FLOWER__PORT": str(port), "FLOWER_BASIC_AUTH": "me:my-own-word"}
    child = subprocess.Popen(
        Fanout.argv("flower"), cwd=fanout.folder, env=fanout.env | own, stderr=subprocess.DEVNULL
    )
    try:
        assert within(50, lambda: status_of(port, "/tasks", "me:my-own-word") == 200)
        assert status_of(port, "/tasks", "fanout:wrong") == 401
    finally:
        child.terminate()
        child.wait(20)


def status_of(port: int, path: str, login: str | None, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    if login is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - http, from above
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
