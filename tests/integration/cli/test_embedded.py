"""The private Redis of one machine: found, started, stopped, and gone with its parent."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from fanout.orchestrator.client.state_folder import NotStarted, StateFolder, try_lock
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.embedded import child_process
from fanout.orchestrator.embedded.child_process import ChildProcess
from fanout.orchestrator.embedded.redis_server import RedisServer
from fanout.orchestrator.embedded.services import stop_in
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.connection import answers
from tests.integration.cli.conftest import Fanout, clean_environment
from tests.waits import eventually, eventually_in_thread

pytestmark = [
    pytest.mark.redis,
    pytest.mark.blocks_loop(
        "children are started and stopped in a loop that has nothing else to do yet"
    ),
]


async def test_redis_starts_answers_keeps_its_data_and_stops(tmp_path):
    server = RedisServer(tmp_path)

    url = await server.start(outlives_parent=False)
    assert answers(url)
    cli(url, "SET", "colour", "red")
    await server.stop()
    assert not answers(url)
    assert not server.process.is_alive
    url = await server.start(outlives_parent=False)

    assert cli(url, "GET", "colour") == "red"
    assert oct((tmp_path / "redis.sock").stat().st_mode & 0o777) == "0o700"
    await server.stop()


async def test_a_long_path_falls_back_to_a_port_behind_a_password(tmp_path):
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    server = RedisServer(folder)

    url = await server.start(outlives_parent=False)

    assert url.startswith("redis://:")
    assert answers(url)
    assert not answers(url.replace("redis://:", "redis://:wrong"))
    assert oct((folder / "redis.conf").stat().st_mode & 0o777) == "0o600"
    await server.stop()


async def test_a_folder_with_odd_characters_is_fine(tmp_path):
    folder = tmp_path / 'a "b" %41 ?c#\\d'
    folder.mkdir()
    server = RedisServer(folder)

    url = await server.start(outlives_parent=False)

    assert answers(url)
    await server.stop()


async def test_a_redis_that_cannot_start_says_why(tmp_path):
    (tmp_path / "appendonlydir").write_text("in the way")

    with pytest.raises(LedgerUnavailable, match=r"Redis did not start in .*: .+"):
        await RedisServer(tmp_path).start(outlives_parent=False)


async def test_another_process_sees_whether_a_child_lives(tmp_path):
    mine, theirs = ChildProcess(tmp_path, "sleeper"), ChildProcess(tmp_path, "sleeper")

    mine.start(["sleep", "60"], env=os.environ, outlives_parent=False)
    assert theirs.is_alive
    assert theirs.pid is not None
    with pytest.raises(OSError):
        theirs.start(["sleep", "60"], env=os.environ, outlives_parent=False)
    await theirs.stop(5)

    assert not mine.is_alive
    assert theirs.pid is None


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    child = ChildProcess(tmp_path, "stubborn")
    child.start(
        [
            sys.executable,
            "-c",
            "import signal,time\nsignal.signal(15, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)",
        ],
        env=os.environ,
        outlives_parent=False,
    )
    await eventually(child.last_log_line)

    await child.stop(0.2)

    assert not child.is_alive


@pytest.mark.parametrize("last", ["while :; do sleep 1; done", "exec sleep 60"])
async def test_a_child_that_is_stopped_ends_and_all_of_its_session_with_it(tmp_path, last):
    child = ChildProcess(tmp_path, "stopped")
    program = f"trap '' TERM; (trap '' TERM; echo $BASHPID; {last}) & echo $!; {last}"
    child.start(["bash", "-m", "-c", program], env=os.environ, outlives_parent=False)
    await eventually(child.last_log_line)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)

    assert await child.stop(0.2)

    assert not child.is_alive


async def test_down_names_what_has_not_ended_although_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(child_process, "KILL_WAIT_SECONDS", 0.1)
    folder = StateFolder(tmp_path)
    folder.prepare()
    settings = Settings(state_dir=tmp_path, worker={"shutdown_grace_seconds": 1})
    with (tmp_path / "worker.lock").open("w") as lock:  # as a process holds it that cannot end
        lock.write("999999999")
        lock.flush()
        assert try_lock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotStarted, match=r"Not stopped: worker \(process 999999999\)"):
            await stop_in(folder, settings)

    assert await stop_in(folder, settings) is False


def test_children_end_when_their_parent_is_killed(tmp_path):
    script = (
        "import asyncio, sys, time; from pathlib import Path\n"
        "from fanout.orchestrator.embedded.redis_server import RedisServer\n"
        f"print(asyncio.run(RedisServer(Path({str(tmp_path)!r})).start(outlives_parent=False)), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(tmp_path),
    )
    assert parent.stdout is not None
    url = parent.stdout.readline().strip()
    assert answers(url)

    parent.kill()
    parent.wait(60)

    assert within(60, lambda: not answers(url))


def test_down_without_anything_running_says_so(lonely_fanout):
    ended = lonely_fanout("down")

    assert (ended.code, ended.out) == (0, "")
    assert "Nothing is running" in ended.err


def test_a_stale_file_is_no_redis(lonely_fanout: Fanout):
    state = lonely_fanout.folder / "state"
    state.mkdir()
    stale = {
        "redis_url": f"unix://{state}/redis/redis.sock",
        "blobs_url": "file:///x",
        "redis_pid": 1,
    }
    (state / "embedded.json").write_text(json.dumps(stale | {"worker_pid": 1, "kept": True}))

    assert lonely_fanout("ps").code == 3
    (state / "embedded.json").write_text("{")
    assert lonely_fanout("ps").code == 3


def test_a_state_folder_that_cannot_be_used_is_named(lonely_fanout: Fanout):
    (lonely_fanout.folder / "state").write_text("a file")

    ended = lonely_fanout("up")

    assert ended.code == 3
    assert "FANOUT_STATE_DIR" in ended.err
    assert "Traceback" not in ended.err


def cli(url: str, *words: str) -> str:
    command = ["redis-cli", "-s", url.removeprefix("unix://"), *words]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def within(seconds: float, condition) -> bool:
    return bool(eventually_in_thread(condition, seconds=seconds))
