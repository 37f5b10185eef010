"""Prepared environments: made once, below the files of many jobs, changed by none."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import SetupCutOff, SetupFailed
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import INSTALLATION
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.environment import EnvironmentRequest, SetupStep
from fanout.workers.sandbox.protocol import Command, Sandbox, nobody
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec
from tests.forked import REPOSITORY
from tests.waits import eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

FILES = {".gitignore": b"made/\n*.egg-info\n", "src/a.py": b"a = 1\n", "kept.txt": b"kept\n"}
SET_UP = (
    "mkdir -p made node_modules/lib src/a.egg-info && echo one > made/x && echo two > made/y && "
    "echo lib > node_modules/lib/index.js && echo info > src/a.egg-info/PKG-INFO && "
    "ln -s x made/link && echo changed > kept.txt && echo loose > loose.txt"
)


def make_request(snapshot: str, *commands: str, **fields: Any) -> EnvironmentRequest:
    key = hashlib.sha256(repr((snapshot, commands, fields)).encode()).hexdigest()
    step = SetupStep(source="the agent coder", commands=commands, timeout_seconds=60)
    values: dict[str, Any] = {
        "key": key,
        "image": "fanout/python",
        "limits": make_sandbox_spec().limits,
        "steps": (step,),
        "snapshot": snapshot,
    }
    return EnvironmentRequest(**{**values, **fields})


async def output(sandbox: Sandbox, command: str) -> str:
    ended = await sandbox.run(Command(argv=command))
    return ended.output.decode()


@pytest.fixture
def remove_all(provider: DockerProvider) -> Callable[[], Awaitable[None]]:
    async def remove() -> None:
        found = await provider.environments.list()
        assert not any(each.in_use for each in found)
        await provider.environments.remove([each.key for each in found])

    return remove


async def test_ignored_files_of_a_set_up_are_below_a_jobs_files_and_never_its_changes(
    provider: DockerProvider,
    snapshots: SnapshotFolder,
    remove_all: Callable[[], Awaitable[None]],
) -> None:
    snapshot = snapshots.add(FILES)
    request = make_request(snapshot, SET_UP)

    assert await provider.environments.ensure(request)
    assert not await provider.environments.ensure(request)

    spec = make_sandbox_spec(snapshot=snapshot, environment=request.key)
    async with provider.open(spec) as sandbox:
        seen = await output(sandbox, "cat made/x made/link node_modules/lib/index.js kept.txt; ls")
        assert seen == "one\none\nlib\nkept\nkept.txt\nmade\nnode_modules\nsrc\n"
        assert await changed_paths(sandbox) == []
        await output(
            sandbox,
            "echo other > made/x; rm made/y; rm -r node_modules; echo new > made/z; "
            "echo b > src/b.py; cp made/x copied; mv src/a.egg-info moved",
        )
        assert sorted(await changed_paths(sandbox)) == [
            ("copied", "added"),
            ("moved/PKG-INFO", "added"),
            ("src/b.py", "added"),
        ]
    await provider.discard(spec.job_id)

    spec = make_sandbox_spec(snapshot=snapshot, environment=request.key)
    async with provider.open(spec) as sandbox:
        assert await output(sandbox, "cat made/x made/y; ls node_modules") == "one\ntwo\nlib\n"
    await provider.discard(spec.job_id)
    await remove_all()


async def test_a_set_up_that_fails_says_so_with_its_output_and_leaves_nothing(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    request = make_request(
        snapshots.add(FILES), "echo fine", "mkdir made; echo no such pin; exit 3"
    )

    with pytest.raises(SetupFailed) as failed:
        await provider.environments.ensure(request)

    assert str(failed.value) == (
        "The set-up of the agent coder failed: `mkdir made; echo no such pin; exit 3` ended with "
        "exit code 3. Its output ends with:\nno such pin"
    )
    assert not failed.value.retryable
    assert await provider.environments.list() == []


async def test_jobs_that_want_the_same_environment_on_two_workers_make_it_once(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    first, second = make_provider(), make_provider()
    request = make_request(snapshots.add(FILES), "sleep 1; mkdir made; date +%N > made/when")

    made = await asyncio.gather(
        *(one.environments.ensure(request) for one in (first, first, second, second))
    )

    assert sorted(made) in ([False, False, False, True], [False, False, True, True])
    records = await second.environments.list()
    assert [record.key for record in records] == [request.key]
    await first.environments.remove([request.key])


async def test_a_set_up_without_a_waiting_job_ends_and_with_one_it_goes_on(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    request = make_request(snapshots.add(FILES), "mkdir made", "sleep 100")
    environments = provider.environments
    jobs = [asyncio.create_task(environments.ensure(request)) for _ in range(2)]
    await eventually(lambda: provider._open)

    jobs[0].cancel()
    await asyncio.wait(jobs[:1])
    assert provider._open
    jobs[1].cancel()
    await asyncio.wait(jobs)

    assert not provider._open
    assert await environments.list() == []
    steward = await provider._steward()
    assert await steward.claim_environment(request.key)  # another job may begin at once
    assert await steward.warm(-1) == []


KILLED = """
    import asyncio, sys
    from pathlib import Path
    from fanout.workers.sandbox.docker import naming
    from fanout.workers.sandbox.docker.provider import DockerProvider
    from tests.docker.conftest import SnapshotFolder
    from tests.docker.test_environments import FILES, make_request

    naming.START_SECONDS = 0.0

    async def main():
        folder = SnapshotFolder(Path(sys.argv[2]))
        provider = DockerProvider(folder.fetch, installation=sys.argv[1], worker="killed")
        request = make_request(folder.add(FILES), "mkdir made; touch made/half; sleep 100")
        making = asyncio.create_task(provider.environments.ensure(request))
        while not provider._open:
            await asyncio.sleep(0.05)
        print(request.key, flush=True)
        await making

    asyncio.run(main())
"""


async def test_a_killed_worker_leaves_nothing_half_made_and_another_begins_anew(
    make_provider: Callable[..., DockerProvider],
    engine: Engine,
    snapshots: SnapshotFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("START_SECONDS", "WARM_VOLUME_SECONDS"):
        monkeypatch.setattr(f"fanout.workers.sandbox.docker.removals.{name}", 0.0)
    provider = make_provider(worker="living")
    snapshot = snapshots.add(FILES)
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(KILLED),
        provider._names.installation, str(snapshots._folder),
        cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert killed.stdout is not None
    key = (await killed.stdout.readline()).decode().strip()
    request = make_request(snapshot, "mkdir made; echo whole > made/x", key=key)
    waiting = asyncio.create_task(provider.environments.ensure(request))
    await asyncio.sleep(0)
    os.kill(killed.pid, signal.SIGKILL)
    await killed.wait()

    assert await waiting

    spec = make_sandbox_spec(snapshot=snapshot, environment=key)
    async with provider.open(spec) as sandbox:
        assert await output(sandbox, "ls made") == "x\n"
    await provider.discard(spec.job_id)
    await provider.environments.remove([key])

    async def is_clean() -> bool:
        await provider.reap(nobody)
        volumes = await engine.volumes(f"{INSTALLATION}={provider._names.installation}")
        is_left = any("warm-" in volume["Name"] for volume in volumes)
        return not is_left and await (await provider._steward()).warm(-1) == []

    await eventually(is_clean)


HOSTILE = r"""
cd /workspace; mkdir -p made/deep && cd made
ln -s /etc/passwd etc; ln -s ../../../../proc/1/environ up; ln -s . loop
cp /bin/true tool; chmod 6777 tool; mkfifo pipe; ln tool hard
python3 -c 'import os; os.mkdir(b"odd\n\xff"); open(b"odd\n\xff/f", "w").close()'
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
mknod device c 1 3 2>/dev/null; mknod white c 0 0 2>/dev/null
echo x > /etc/spoilt; echo x > /usr/bin/git; echo x > /opt/fanout/x
(setsid sh -c 'while :; do echo more >> /workspace/made/late; sleep 0.1; done' &) >/dev/null 2>&1
git config --global core.fsmonitor /workspace/made/tool
printf '!made\n' > /workspace/.gitignore; echo 'kept.txt' > /workspace/.git/info/exclude
exit 0
"""


async def test_a_hostile_set_up_stays_in_its_own_environment(
    provider: DockerProvider,
    snapshots: SnapshotFolder,
    remove_all: Callable[[], Awaitable[None]],
) -> None:
    snapshot = snapshots.add(FILES)
    request = make_request(snapshot, HOSTILE)
    bomb = make_request(snapshot, "bomb() { bomb | bomb & }; bomb; sleep 2; exit 7")
    full = make_request(snapshot, "mkdir made; head -c 200M /dev/zero > made/big")

    for failing in (bomb, full):
        with pytest.raises(SetupFailed):
            await provider.environments.ensure(failing)
    assert await provider.environments.ensure(request)

    spec = make_sandbox_spec(snapshot=snapshot, environment=request.key)
    async with provider.open(spec) as sandbox:
        listed = await output(
            sandbox, "cd made; ls -b; stat -c %a tool; head -1 etc; git --version"
        )
        assert "etc\nhard\n" in listed
        assert "odd\\n\\377\n" in listed
        assert not {"pipe", "sock", "device", "white"} & set(listed.splitlines())
        assert "\n777\nroot:x:0:0:" in listed
        assert "git version" in listed
        assert await output(sandbox, "cat .gitignore kept.txt; ls /etc/spoilt") == (
            "made/\n*.egg-info\nkept\nls: cannot access '/etc/spoilt': No such file or directory\n"
        )
        assert await changed_paths(sandbox) == []
    await provider.discard(spec.job_id)
    await remove_all()


async def test_a_set_up_reaches_its_own_hosts_only_and_a_lost_one_is_worth_another_attempt(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add(FILES)
    ask = "python3 -c 'import urllib.request; urllib.request.urlopen(\"http://127.0.0.2:9/x\")'"

    def step(source: str, command: str, *network: str) -> SetupStep:
        return SetupStep(source=source, commands=(command,), timeout_seconds=60, network=network)

    nobody_there = step("the first", ask, "127.0.0.2:9")
    steps = (replace(nobody_there, commands=("true",)), step("the second", ask))

    with pytest.raises(SetupCutOff, match=r"The host 127\.0\.0\.2 did not answer") as cut_off:
        await provider.environments.ensure(make_request(snapshot, steps=(nobody_there,)))
    assert cut_off.value.retryable
    with pytest.raises(SetupFailed, match="set-up of the second") as failed:
        await provider.environments.ensure(make_request(snapshot, steps=steps))
    assert "Connection refused" in str(failed.value)  # it has no proxy
    assert not failed.value.retryable


async def test_what_no_job_uses_is_removed_when_it_is_old_or_too_large(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add(FILES)
    first, second = (
        make_request(snapshot, f"mkdir made; head -c 4M /dev/urandom > made/{name}")
        for name in ("first", "second")
    )
    environments = provider.environments
    for request in (first, second):
        await environments.ensure(request)
    spec = make_sandbox_spec(snapshot=snapshot, environment=first.key)
    async with provider.open(spec):
        assert await environments.remove(unused_seconds=3600, most_bytes=1 << 40) == []
        assert await environments.remove(unused_seconds=3600, most_bytes=6 << 20) == [second.key]
        assert await environments.remove([first.key]) == []
    await provider.discard(spec.job_id)

    assert await environments.remove(unused_seconds=-1, most_bytes=1 << 40) == [first.key]
    assert await environments.list() == []
