"""A private Redis and worker, all killed with -9.

The next command finds their jobs and ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fanout.orchestrator.client.state_folder import EmbeddedRecord, StateFolder
from fanout.orchestrator.embedded.child_process import ChildProcess
from tests.integration.cli.conftest import Ended, Fanout
from tests.integration.cli.test_embedded import within
from tests.integration.scripts import DONE, conversation, shell, write_script

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = conversation(
    ".*", shell("echo one >> steps.txt"), shell("sleep 1; echo two >> steps.txt"), DONE
)
HALF_A_COMMAND = b"*3\r\n$3\r\nSET\r\n$6\r\ncol"
BY_ITSELF = """
import asyncio, sys
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.embedded.services import Embedded
from fanout.orchestrator.jobs.spec import JobSpec

async def main():
    async with Embedded(load_settings()) as embedded, JobClient.from_settings(embedded.settings) as client:
        print(await client.submit(JobSpec(description="by itself")), flush=True)
        await asyncio.sleep(100)

asyncio.run(main())
"""
LOOKING = """
import sys
from pathlib import Path
from fanout.orchestrator.embedded.child_process import ChildProcess

child = ChildProcess(Path(sys.argv[1]), "sleeper")
print(1, flush=True)
while True:
    child.is_alive
"""


@pytest.fixture
def fanout(lonely_fanout: Fanout) -> Iterator[Fanout]:
    script = write_script(lonely_fanout.folder, SCRIPT)
    lonely_fanout.env.update(
        FANOUT_SANDBOX__PROVIDER="local",
        FANOUT_MODEL=f"scripted:{script}",
        FANOUT_WORKER__LEASE_SECONDS="4",
        FANOUT_WORKER__CONCURRENCY="2",
    )
    yield lonely_fanout
    lonely_fanout("down", timeout=60)


def state(fanout: Fanout) -> Path:
    return fanout.folder / "state"


def record(fanout: Fanout) -> EmbeddedRecord:
    found = StateFolder(state(fanout)).read_record()
    assert found is not None
    return found


def kill(*pids: int | None) -> None:
    """At once, with all that they started."""
    processes = [psutil.Process(pid) for pid in pids if pid]
    for process in [
        *processes,
        *(child for one in processes for child in one.children(recursive=True)),
    ]:
        with contextlib.suppress(psutil.NoSuchProcess):  # one whose parent went first
            process.send_signal(signal.SIGKILL)


def steps_of(fanout: Fanout, job_id: str) -> int:
    return fanout("logs", job_id, "--json").out.count('"tool.call"')


def at_the_same_moment(fanout: Fanout, *commands: tuple[str, ...]) -> list[Ended]:
    started = [fanout.start(*command) for command in commands]
    ended = []
    for process in started:
        out, err = process.communicate(timeout=120)
        ended.append(Ended(process.returncode, out.decode(), err.decode()))
    return ended


def test_what_was_killed_is_found_and_ended_by_the_next_commands(fanout: Fanout) -> None:
    assert fanout("up", "--no-serve", timeout=90).code == 0
    ids = [fanout("submit", f"job {number}").out.strip() for number in range(3)]
    assert within(60, lambda: steps_of(fanout, ids[0]) > 0)
    before = record(fanout)
    kill(before.redis_pid, before.worker_pid)
    # Redis reports its start by the second, up to two seconds early: an outage that uses up no
    # attempt has to be longer than that.
    time.sleep(2.1)
    (journal,) = (state(fanout) / "redis" / "appendonlydir").glob("*.incr.aof")
    with journal.open("ab") as file:
        file.write(HALF_A_COMMAND)  # it was killed in the middle of a write
    workers = state(fanout).glob("worker-*.lock")
    for name in (*workers, state(fanout) / "redis" / "redis-server.lock"):
        name.write_text(str(os.getpid()))  # its id belongs to another process by now
    (state(fanout) / "embedded.json.new").write_text("{")

    listed, submitted, waited = at_the_same_moment(
        fanout,
        ("ps", "--all", "--json"),
        ("submit", "job 3"),
        ("wait", *ids, "--timeout", "60", "--json"),
    )

    assert [ended.code for ended in (listed, submitted, waited)] == [0, 0, 0], (
        listed,
        submitted,
        waited,
    )
    assert set(ids) <= {job["id"] for job in listed.json["jobs"]}
    results = waited.json["results"]
    assert [(one["job_id"], one["success"], one["attempts"]) for one in results] == [
        (i, True, 1) for i in ids
    ]
    assert "was killed; it is started again" in listed.err + submitted.err + waited.err
    assert fanout("wait", submitted.out.strip(), "--timeout", "60", timeout=70).code == 0
    after = record(fanout)
    assert after.kept
    assert (after.redis_pid, after.worker_pid) != (before.redis_pid, before.worker_pid)

    kill(after.worker_pid)  # Redis lives on
    job_id = fanout("submit", "one more", timeout=60).out.strip()
    assert fanout("wait", job_id, "--timeout", "60", timeout=90).code == 0
    assert record(fanout).redis_pid == after.redis_pid
    assert fanout("down", timeout=60).code == 0
    assert fanout("ps").code == 3, "what was stopped is left alone"


def test_a_command_that_was_killed_with_its_redis_and_worker_leaves_its_job_to_the_next(
    fanout: Fanout,
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", BY_ITSELF],
        cwd=fanout.folder,
        env=fanout.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    job_id = child.stdout.readline().strip()
    found = record(fanout)
    assert not found.kept
    kill(child.pid, found.redis_pid, found.worker_pid)
    child.wait(60)

    waited = fanout("wait", job_id, "--timeout", "60", "--json", timeout=90)

    assert waited.code == 0, waited
    assert json.loads(waited.out)["results"][0]["success"]


def test_a_look_at_a_lock_does_not_keep_a_child_from_starting(tmp_path: Path) -> None:
    looking = subprocess.Popen(
        [
            sys.executable,
            "-c",
            LOOKING,
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert looking.stdout is not None
        looking.stdout.readline()
        for _ in range(20):
            child = ChildProcess(tmp_path, "sleeper")
            child.start(["true"], env=os.environ, outlives_parent=False)
            assert within(60, lambda one=child: not one.is_alive)
    finally:
        looking.kill()
        looking.wait()
