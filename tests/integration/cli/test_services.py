"""`up`, `down`, `worker` and `flower`: real child processes."""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import httpx2
import pytest

from fanout.orchestrator.client.attachment import NO_REDIS
from fanout.orchestrator.client.state_folder import StateFolder
from tests.forked import REPOSITORY
from tests.integration.cli.conftest import Fanout
from tests.integration.cli.test_embedded import within
from tests.integration.scripts import conversation, says, write_script
from tests.services import free_port

pytestmark = pytest.mark.redis

LOCAL = {"FANOUT_SANDBOX__PROVIDER": "local"}


@pytest.mark.representative
@pytest.mark.slow
def test_up_leaves_a_worker_that_later_commands_find_and_down_stops_it(lonely_fanout: Fanout):
    started = lonely_fanout("up", "--no-serve", env=LOCAL, timeout=90)
    try:
        again = lonely_fanout("up", "--no-serve", env=LOCAL, timeout=90)
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
def test_up_serves_the_page_and_prints_links_that_log_in_once(lonely_fanout: Fanout):
    env = LOCAL | {"FANOUT_API__PORT": "0"}
    try:
        first = lonely_fanout("up", "--json", env=env, timeout=90).json["server"]
        again = lonely_fanout("up", "--json", env=env, timeout=90).json["server"]
        with httpx2.Client() as browser:
            page = browser.get(first["url"])
            entered = browser.get(first["login"])
            seen = browser.get(f"{first['url']}/v1/jobs")
            used = httpx2.get(first["login"])
    finally:
        stopped = lonely_fanout("down", timeout=60)

    assert again["url"] == first["url"]
    assert again["login"] != first["login"]
    assert (page.status_code, entered.status_code, seen.status_code) == (200, 303, 200)
    assert used.status_code == 403
    assert stopped.code == 0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(first["url"])


@pytest.mark.slow
def test_the_python_of_the_readme_finds_what_up_started_and_env_names_it_to_others(
    lonely_fanout: Fanout, tmp_path: Path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(program_of_the_readme())
    script = write_script(tmp_path, conversation("", says("## Summary\nIt was researched.")))
    env = lonely_fanout.env | LOCAL | {"FANOUT_MODEL": f"scripted:{script}"}
    del env["PYTHONPATH"]
    program = [sys.executable, "program.py"]
    try:
        without = run_in(elsewhere, program, env)
        told = lonely_fanout("up", "--no-serve", "--env", env=env, timeout=90)
        document = lonely_fanout("up", "--no-serve", "--env", "--json", env=env, timeout=90).json
        plain = lonely_fanout("up", "--no-serve", "--json", env=env, timeout=90).json
        attached = run_in(elsewhere, program, env)
        shell = ["sh", "-c", f'{told.out}FANOUT_STATE_DIR=/nowhere exec "$0" "$@"', *program]
        exported = run_in(elsewhere, shell, env)
    finally:
        lonely_fanout("down", timeout=60)

    assert without.stderr.splitlines()[-1].endswith(NO_REDIS)
    assert (attached.returncode, attached.stdout.strip()) == (0, "It was researched.")
    assert (exported.returncode, exported.stdout.strip()) == (0, "It was researched.")
    assert re.fullmatch(
        r"export FANOUT_REDIS_URL=\S+\nexport FANOUT_REDIS_PREFIX=fanout\n"
        r"export FANOUT_BLOBS_URL=file://\S+\n",
        told.out,
    )
    assert document["environment"].keys() == {
        *("FANOUT_REDIS_URL", "FANOUT_REDIS_PREFIX", "FANOUT_BLOBS_URL"),
    }
    assert "environment" not in plain


def program_of_the_readme() -> str:
    """Its lines that connect and run a job, in a function: they await."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    imports, _, body = next(one for one in blocks if "from_settings" in one).partition("\n\n")
    made = textwrap.indent(body, "    ")
    return f"import asyncio\n{imports}\nasync def main():\n{made}\nasyncio.run(main())\n"


def run_in(
    folder: Path, command: list[str], env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.slow
def test_two_ups_at_once_start_one_redis(lonely_fanout: Fanout):
    both = [
        subprocess.Popen(
            Fanout.argv("up", "--no-serve"), cwd=lonely_fanout.folder, env=lonely_fanout.env | LOCAL
        )
        for _ in "ab"
    ]
    try:
        codes = [child.wait(90) for child in both]
        workers = lonely_fanout("doctor", "--json", env=LOCAL, timeout=60)
    finally:
        lonely_fanout("down", timeout=60)

    assert codes == [0, 0]
    assert '"1 alive"' in workers.out


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_told_with_its_last_words(lonely_fanout: Fanout):
    bad_agents = lonely_fanout.folder / "agents"
    bad_agents.mkdir()
    env = LOCAL | {"FANOUT_AGENTS_DIR": str(bad_agents / "x.yaml")}
    (bad_agents / "x.yaml").write_text("name: x\ncolour: red\n")

    ended = lonely_fanout("up", "--no-serve", env=env, timeout=90)

    assert ended.code in (2, 3)
    assert "is not a folder" in ended.err
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
        assert within(60, lambda: '"1 alive"' in fanout("doctor", "--json", env=LOCAL).out)
    finally:
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 0, said.decode()[-2000:]


@pytest.mark.slow
def test_flower_wants_a_password_and_lets_nobody_act(fanout: Fanout):
    port = free_port()
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
        assert within(60, lambda: http_status(port, "/", None) == 401)

        assert login not in Path(f"/proc/{child.pid}/cmdline").read_text()
        assert http_status(port, "/tasks", login) == 200
        assert http_status(port, "/tasks", "fanout:wrong") == 401
        assert http_status(port, "/api/worker/shutdown/x", login, method="POST") == 403
        assert re.match(r"fanout:\S{12,}$", login)
    finally:
        child.terminate()
        child.wait(60)


@pytest.mark.slow
def test_flower_takes_the_password_of_its_own_variable_or_says_what_it_looks_like(fanout: Fanout):
    port = free_port()
    refused = fanout("flower", env={"FLOWER_BASIC_AUTH": "nopassword"})
    assert (refused.code, refused.out) == (2, "")
    assert "user:password" in refused.err
    assert "nopassword" not in refused.err
    own = {"FLOWER_PORT": str(port), "FLOWER_BASIC_AUTH": "me:my-own-word"}
    opened = {"FLOWER_ADDRESS": "0.0.0.0"}  # noqa: S104 - not used
    child = subprocess.Popen(
        Fanout.argv("flower"),
        cwd=fanout.folder,
        env=fanout.env | own | opened,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        assert f"http://127.0.0.1:{port}" in child.stderr.readline()
        assert "not used: FLOWER_ADDRESS" in child.stderr.readline()
        assert within(60, lambda: http_status(port, "/tasks", "me:my-own-word") == 200)
        assert http_status(port, "/tasks", "fanout:wrong") == 401
    finally:
        child.terminate()
        child.wait(60)


@pytest.mark.parametrize("wrong", ["0", "70000", "http", "-1"])
def test_flower_names_a_variable_that_is_no_port(fanout: Fanout, wrong: str):
    refused = fanout("flower", env={"FLOWER_PORT": wrong})

    assert (refused.code, refused.out) == (2, "")
    assert "FLOWER_PORT has to be a port from 1 to 65,535" in refused.err


@pytest.mark.slow
def test_flower_says_that_its_port_is_taken(fanout: Fanout):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = fanout("flower", env={"FANOUT_FLOWER__PORT": str(port)}, timeout=60)

    assert (refused.code, refused.out) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}" in refused.err
    assert "FANOUT_FLOWER__PORT" in refused.err
    assert "Traceback" not in refused.err


def http_status(port: int, path: str, login: str | None, method: str = "GET") -> int:
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
