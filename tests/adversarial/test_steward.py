"""A scanner that a job has taken over sees that job's files and nothing else, and ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import steward_client as steward_program
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.docker.steward_client import code_files
from fanout.workers.sandbox.errors import ChangesNotCollected, ChangesUnreadable
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import MIB, changed_paths, make_sandbox_spec
from tests.waits import eventually

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

HOOK = """
import sys, os, json, tempfile
sys.path.insert(0, "/opt/steward")
from pathlib import Path
from fanout.workers.sandbox.inside import jail
home = Path(tempfile.mkdtemp(dir="/var/tmp"))
home.chmod(0o711)
(home / "scratch").mkdir()
layers = Path("/store/jobs/{job}")
upper = next(each for each in (layers / "disk/upper", layers / "upper") if each.exists())
before = [Path("/store/snapshots/empty/tree")]
child = jail._fork_apart(os.open("/proc/self/ns/pid", os.O_RDONLY)) if {isolated} else os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
made = jail.Jail(isolated={isolated})
view = made.enter(
    before, upper, marked="trusted.overlay.", scratch=home / "scratch", agent_id=10001, kept=3
)
def tried(action):
    try:
        return repr(action())
    except Exception as error:
        return type(error).__name__
found = {{}}
"""


async def in_jail(provider: DockerProvider, job: str, code: str) -> dict[str, Any]:
    """What a program finds that a job's scanner runs after it has been locked up."""
    steward = await provider._steward()
    hook = HOOK.format(job=job, isolated=steward.quota.kind == "image")
    command = ["docker", "exec", "-i", steward.container, "python3", "-ISB", "-"]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=f"{hook}\n{code}\nprint(json.dumps(found))",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("quota", ["image", "watch"])
async def test_a_scanner_that_is_taken_over_cannot_read_another_jobs_files(
    make_provider: Callable[..., DockerProvider], quota: str
) -> None:
    provider = make_provider(disk_quota=quota)
    mine, other = make_sandbox_spec(), make_sandbox_spec()
    async with provider.open(mine) as sandbox, provider.open(other) as victim:
        await sandbox.run(Command(argv="echo mine > note"))
        await victim.run(Command(argv="echo secret > note; chmod 777 note"))
        attack = f"""
other = "/store/jobs/{other.job_id}"
for path in (
    "disk/upper/note", "upper/note", "disk/upper", "upper", "image", "renaming/image", "files",
):
    found[path] = tried(lambda: os.open(other + "/" + path, os.O_RDONLY))
def climb(steps):
    folder = os.open(view.after, os.O_RDONLY) if isinstance(view.after, Path) else view.after
    for name in steps:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    return os.listdir(folder)
found["next job"] = tried(lambda: climb(["..", "..", "{other.job_id}"]))
found["next job on a disk"] = tried(lambda: climb(["..", "..", "..", "{other.job_id}"]))
found["snapshots"] = tried(lambda: climb(["..", "..", "..", "snapshots"]))
found["from the root"] = tried(lambda: climb([".."] * 9 + ["store", "jobs"]))
found["of the steward"] = tried(lambda: os.listdir("/proc/1/root/store/jobs"))
found["block devices"] = tried(lambda: os.open("/dev/loop0", os.O_RDONLY))
found["new device"] = tried(lambda: os.mknod(os.environ["TMPDIR"] + "/loop", 0o60600, os.makedev(7, 0)))
found["write"] = tried(lambda: os.open("evil", os.O_CREAT | os.O_WRONLY, dir_fd=view.before)
    if isinstance(view.before, int) else os.open(view.before / "evil", os.O_CREAT | os.O_WRONLY))
found["mark"] = tried(lambda: os.setxattr(view.after, "trusted.overlay.opaque", b"y"))
found["kill"] = tried(lambda: os.kill(1, 9) if os.getpid() != 1 else os.kill(2, 9))
found["user"] = os.getuid()
mine = os.open(view.after, os.O_RDONLY) if isinstance(view.after, Path) else view.after
found["mine"] = os.read(os.open("note", os.O_RDONLY, dir_fd=mine), 99).decode()
"""
        found = await in_jail(provider, mine.job_id, attack)

        assert found.pop("mine") == "mine\n"
        assert found.pop("user") in {10001, 10002}
        allowed = {"PermissionError", "FileNotFoundError", "OSError", "ProcessLookupError"}
        if quota == "watch":  # the steward may not mount: the scanner is the job's user
            found.pop("write")
        assert {name: got for name, got in found.items() if got not in allowed} == {}
        assert other.job_id not in json.dumps(found)
        assert await changed_paths(sandbox) == [("note", "added")]
        assert await changed_paths(victim) == [("note", "added")]


async def test_files_and_folders_that_their_owner_may_not_read_are_collected_exactly(
    provider: DockerProvider,
) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        await sandbox.run(
            Command(argv="echo a > a; mkdir d; echo b > d/b; chmod 0 a d/b d; chmod 0 .")
        )

        assert await changed_paths(sandbox) == [("a", "added"), ("d/b", "added")]


async def test_a_scan_that_hangs_ends_with_a_clear_failure_and_the_steward_goes_on(
    make_provider: Callable[..., DockerProvider],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    genuine = code_files

    def hanging(main_module: str = "resident") -> dict[str, bytes]:
        files = genuine(main_module)
        if main_module == "steward":
            name = "fanout/workers/sandbox/inside/jail.py"
            files[name] = files[name].replace(b"MAX_SECONDS = 300", b"MAX_SECONDS = 3")
            name = "fanout/workers/sandbox/inside/change_bundle.py"
            hang = (
                b'if path == "hang":\n            while True: pass\n        '
                b'if path == "eat":\n            bytearray(4 << 30)\n        '
                b'if path == "busy":\n            raise OSError(16, "secret")\n        '
            )
            at = b"if path in paths:\n            continue\n        "
            assert at in files[name]
            files[name] = files[name].replace(at, at + hang)
        return files

    monkeypatch.setattr(steward_program, "code_files", hanging)
    steward_program.steward_code.cache_clear()
    request.addfinalizer(steward_program.steward_code.cache_clear)
    provider = make_provider()
    async with (
        provider.open(make_sandbox_spec()) as hung,
        provider.open(make_sandbox_spec()) as greedy,
        provider.open(make_sandbox_spec()) as busy,
        provider.open(make_sandbox_spec()) as fine,
    ):
        await hung.run(Command(argv="touch hang"))
        await greedy.run(Command(argv="touch eat"))
        await busy.run(Command(argv="touch busy"))
        await fine.run(Command(argv="touch fine"))

        with pytest.raises(ChangesNotCollected, match=r"killed: it may take 3 s"):
            await hung.changes()
        with pytest.raises(ChangesNotCollected, match=r"more than \d+ bytes of memory"):
            await greedy.changes()
        with pytest.raises(ChangesUnreadable, match=r"read \(Device or resource busy\)"):
            await busy.changes()
        assert await changed_paths(fine) == [("fine", "added")]


PROCESSES_OF_IDLE_STEWARD = 3
"""Itself, the server that forks, and a process that was made ahead."""


async def list_processes(provider: DockerProvider) -> list[list[str]]:
    """The id, the parent's id and the command of every process of the steward's container."""
    steward = await provider._steward()
    command = ["docker", "top", steward.container, "-o", "pid,ppid,args"]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    return [line.split(None, 2) for line in done.stdout.splitlines()[1:]]


async def test_a_collection_that_nobody_waits_for_leaves_no_process(
    provider: DockerProvider,
) -> None:
    spec = make_sandbox_spec()
    async with provider.open(spec) as sandbox:
        await sandbox.run(Command(argv="seq -f %070g 900000 > many; split -l 1 -a 4 many"))
        for seconds in (0.05, 0.2, 0.6):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    (await sandbox.changes()).close()

        await eventually(
            lambda: list_processes(provider), lambda left: len(left) == PROCESSES_OF_IDLE_STEWARD
        )


async def test_a_steward_that_cannot_collect_any_more_is_replaced(provider: DockerProvider) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        await sandbox.run(Command(argv="echo a > a"))
        main, *others = await list_processes(provider)
        (fork_server,) = (pid for pid, parent, _ in others if parent == main[0])
        os.kill(int(fork_server), signal.SIGKILL)
        with pytest.raises(SandboxFailure):
            await sandbox.changes()

        assert await changed_paths(sandbox) == [("a", "added")]


async def test_hostile_trees_are_collected_and_deleted(provider: DockerProvider) -> None:
    make = """
import os
for number in range(600):
    os.mkdir("d" * 100); os.chdir("d" * 100)
open("deepest", "w").close()
"""
    others = "mkfifo fifo; ln -s /proc/1/root link; printf x > $(printf 'a\\nb\\377')"
    spec = make_sandbox_spec()
    limits = spec.limits.model_copy(update={"disk_bytes": 256 * MIB})
    spec = make_sandbox_spec(limits=limits)
    async with provider.open(spec) as sandbox:
        await sandbox.run(Command(argv=["python3", "-c", make]))
        await sandbox.run(Command(argv=others))

        assert [path for path, _ in await changed_paths(sandbox)] == ["link"]
    await provider.discard(spec.job_id)
