"""A job without isolation searches this machine's processes for keys, and finds none of ours."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.workers.sandbox import Command, LocalProvider, Sandbox, SandboxSpec
from tests.forked import REPOSITORY
from tests.integration.scripts import call, calls, conversation, says
from tests.services import free_port
from tests.waits import eventually_in_thread

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(sys.platform != "linux", reason="of Linux's /proc"),
]

THIEF = Path(__file__).with_name("secret_thief.py")
MARKER = "canary-of-process-secrets-"
SOMEBODY = 41234
"""An unprivileged user's id that no other test uses."""


def canary() -> str:
    return MARKER + secrets.token_hex(8)


@dataclass
class Machine:
    """Processes of one user, started as a person would start them."""

    folder: Path
    prefix: list[str]
    """What starts them as that user."""
    flower_port: int = field(default_factory=free_port)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *argv: str, log: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            child = subprocess.Popen(
                [*self.prefix, *argv],
                env=self.environment() | environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.started.append(child)
        return child

    def fanout(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        return self.start(
            *(sys.executable, "-P", "-m", "fanout", *arguments), log=log, **self.keys()
        )

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | {
            "HOME": str(self.folder),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FANOUT_STATE_DIR": str(self.folder / "state"),
            "FANOUT_SANDBOX__PROVIDER": "local",
            "FANOUT_EMBEDDED_IDLE_SECONDS": "2",
            "FANOUT_MODEL": f"scripted:{self.folder / 'script.yaml'}",
            "FANOUT_WORKER__PROCESSES": "2",  # so that one looks after them
        }

    def keys(self) -> dict[str, str]:
        names = (
            *("GOOGLE_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"),
            *("TOKEN_OF_AN_MCP_SERVER", "SOMETHING_ELSE"),
        )
        return {name: canary() for name in names} | {
            "FANOUT_FLOWER__BASIC_AUTH": f"tester:{canary()}",
            "FANOUT_FLOWER__PORT": str(self.flower_port),
            "FLOWER_COOKIE_SECRET": canary(),
        }

    def stop(self) -> None:
        for child in reversed(self.started):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait(60)

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
            for path in (*self.folder.glob("*.log"), *self.folder.glob("state/*.log"))
        )


def as_root() -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return []


def as_somebody() -> list[str]:
    """As a user without rights, except to read the interpreter of these tests."""
    if os.geteuid() != 0:
        return []
    return [
        *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"),
        *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--"),
    ]


@pytest.fixture(params=[as_root, as_somebody])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    prefix: Callable[[], list[str]] = request.param
    folder = Path(f"/var/tmp/thief-{secrets.token_hex(4)}")  # a job has a /tmp of its own
    folder.mkdir()
    made = Machine(folder, prefix())
    if made.prefix:
        os.chown(folder, SOMEBODY, SOMEBODY)
    yield made
    made.stop()
    removed = ["rm", "-rf", str(folder)]  # again while a last process of the worker still writes
    eventually_in_thread(lambda: subprocess.run(removed, check=False).returncode == 0)


def write_script(folder: Path, command: str) -> None:
    conversations = [
        {
            "agent": "coordinator",
            **conversation("", calls(call("task", description="steal")), says("done")),
        },
        conversation("steal", calls(call("execute", command=command)), says("## Summary\ndone")),
    ]
    (folder / "script.yaml").write_text(yaml.safe_dump({"conversations": conversations}))


def within(seconds: float, ready: Callable[[], Any], machine: Machine) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, machine.logs()
        time.sleep(0.1)
    return found


@pytest.mark.representative
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_finds_no_key_in_any_process(machine: Machine) -> None:
    folder = machine.folder
    go, out = folder / "go", folder / "out.json"
    shutil.copy(THIEF, folder)
    thief = ["/usr/bin/env", "python3", str(folder / THIEF.name), MARKER[::-1], str(go), str(out)]
    write_script(folder, shlex.join(thief))
    project = folder / "project"
    project.mkdir()
    os.chown(project, *owner_of(folder))

    parent = machine.fanout("run", "steal", "--workspace", "project", "--yes", log="run.log")
    state = StateFolder(folder / "state")
    record = within(60, state.read_record, machine)
    flower = machine.fanout("flower", log="flower.log")
    within(60, lambda: b"Flower: http" in (folder / "flower.log").read_bytes(), machine)
    decoy = machine.start(*decoy_of(machine), log="decoy.log", KEY=canary())
    within(60, lambda: b"Visit me at" in (folder / "flower.log").read_bytes(), machine)
    victims = {
        "parent": parent.pid,
        "worker": record.worker_pid,
        "redis": record.redis_pid,
        "flower": flower.pid,
        "decoy": decoy.pid,
    }
    go.with_suffix(".new").write_text(json.dumps(victims))
    go.with_suffix(".new").rename(go)
    report = json.loads(within(90, lambda: out.exists() and out.read_text(), machine))
    parent.wait(60)

    assert parent.returncode == 0, machine.logs()
    assert report["uid"] == (os.geteuid() if not machine.prefix else SOMEBODY)
    assert {victims["worker"], victims["parent"]} <= set(report["ancestors"])
    of_decoy = [find for find in report["finds"] if "decoy" in find]
    assert of_decoy, "the attack finds nothing where there is something to find"
    assert [find for find in report["finds"] if find not in of_decoy] == []
    assert {name: report["got"][name] for name in ("parent", "worker", "flower")} == {
        "parent": [],
        "worker": [],
        "flower": [],
    }
    assert set(report["descriptors"]) <= {"0", "1", "2"}


def owner_of(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_uid, status.st_gid


def decoy_of(machine: Machine) -> list[str]:
    """A process that does not protect itself, with no more rights than the job."""
    fewer = "--ambient-caps=-all" if machine.prefix else "--bounding-set=-all"
    return ["setpriv", fewer, "--", "sleep", "600"]


def test_the_process_itself_still_has_its_keys_and_its_children_do_not() -> None:
    program = """
import json, os, resource, subprocess, sys
from fanout.orchestrator.process_secrets import seal_process
seal_process()
seal_process()
inherited = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
first = open("/proc/self/environ", "rb").read()
print(json.dumps([os.environ["KEY"], inherited, first.strip(b"\\0").decode()]))
print(resource.getrlimit(resource.RLIMIT_CORE))
"""
    key = canary()
    environment: Mapping[str, str] = os.environ | {"KEY": key, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    told, limits = done.stdout.splitlines()
    kept, inherited, first = json.loads(told)

    assert kept == key
    assert key not in inherited
    assert "PATH=" in inherited
    assert MARKER not in first
    assert limits == "(0, 0)"


SEALED = """
import sys, time
from fanout.orchestrator.process_secrets import seal_process
seal_process()
print("sealed", flush=True)
time.sleep(60)
"""


@pytest.fixture
def sealed() -> Iterator[int]:
    """The id of a process that has a key and protects itself."""
    child = subprocess.Popen(
        [sys.executable, "-c", SEALED],
        env=os.environ | {"KEY": canary(), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"sealed\n"
        yield child.pid
        child.kill()


@pytest.fixture
async def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv("KEY_OF_THE_WORKER", canary())

    async def no_snapshot(_snapshot: str) -> Path:
        raise AssertionError("the job has none")

    provider = await asyncio.to_thread(LocalProvider, no_snapshot, tmp_path, "test")
    spec = SandboxSpec(
        job_id=new_job_id(),
        attempt=1,
        image="",
        limits=Limits(timeout_seconds=60, memory_bytes=2**30, disk_bytes=2**26),
    )
    with open("/etc/hostname") as _left_open:  # noqa: PTH123, ASYNC230 - a descriptor
        async with provider.open(spec) as opened:
            yield opened


@pytest.mark.parametrize(
    "attempt",
    [
        "cat /proc/{pid}/environ",
        "head -c 1 /proc/{pid}/mem",
        "cat /proc/{pid}/maps",
        "readlink /proc/{pid}/fd/0",
        "head -c 1 /proc/{pid}/fd/0",
        "ls /proc/{pid}/cwd/",
        "ls /proc/{pid}/root/",
        "sudo -n cat /proc/{pid}/environ",
        "unshare --user --map-root-user cat /proc/{pid}/environ",
        "nsenter --target {pid} --mount true",
        "mount -t tmpfs none /mnt",
        "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
    ],
)
async def test_a_local_command_cannot_look_into_a_process_of_ours(
    sandbox: Sandbox, sealed: int, attempt: str
) -> None:
    command = attempt.format(pid=sealed)

    ended = await sandbox.run(Command(argv=command, timeout_seconds=20))

    assert ended.exit_code != 0, ended.output
    assert MARKER.encode() not in ended.output


async def test_a_local_command_inherits_nothing_and_has_few_rights(sandbox: Sandbox) -> None:
    look = "env; echo; cat /proc/self/status; ls -l /proc/$$/fd"

    ended = await sandbox.run(Command(argv=look, timeout_seconds=20))

    text = ended.output.decode()
    assert MARKER not in text
    assert "hostname" not in text.rpartition("total")[2]
    assert "NoNewPrivs:\t1" in text
    capabilities = int(text.partition("CapBnd:")[2].split()[0], 16)
    assert os.geteuid() != 0 or not capabilities & (1 << 19 | 1 << 21 | 1 << 16 | 1 << 17)


def test_commands_of_root_that_could_read_its_memory_are_refused() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv")
    check = "from fanout.workers.sandbox.local.processes import check_privileges as check; check()"
    argv = ("setpriv", "--bounding-set=-setpcap", "--", sys.executable, "-c", check)

    ended = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "SandboxStartFailed: Commands would run with the right to read" in ended.stderr
