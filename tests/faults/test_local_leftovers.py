"""Processes that hid from everything.

A local sandbox finds them at its end, and when its worker has died.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.spec import Limits
from fanout.workers.sandbox.local import provider as provider_module
from fanout.workers.sandbox.local.processes import kill_job
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, SandboxSpec
from tests.faults.stopping import gone, running
from tests.waits import eventually

HIDING = "(cd / && env -i setsid /bin/sh -c 'cd /; exec >/dev/null 2>&1 </dev/null; /bin/{sleep} & exit 0' &)"


async def no_snapshot(_blob: str) -> Path:
    raise AssertionError("there is none")


async def everybody(_job_id: str) -> bool:
    return True


async def survives(*_: object) -> bool:
    """Kill nothing, as a worker that dies."""
    return True


JOB = f"j{secrets.token_hex(8)}"
"""No other: its processes are found by it in all mount namespaces, those of other tests, too."""


def spec(attempt: int = 1) -> SandboxSpec:
    return SandboxSpec(job_id=JOB, attempt=attempt, image="none", limits=Limits(), snapshot=None)


@pytest.fixture(params=["in a mount namespace", "without one"])
def local_provider(request: pytest.FixtureRequest, tmp_path: Path) -> LocalProvider:
    made = LocalProvider(no_snapshot, root=tmp_path, installation="test")
    if request.param == "without one":
        made._bound = False
    return made


async def hide(provider: LocalProvider, sleep: str) -> None:
    """Start one that leaves its session, parent, folder and environment; close the sandbox."""
    async with provider.open(spec()) as sandbox:
        ended = await sandbox.run(Command(argv=HIDING.replace("{sleep}", sleep)))
        assert ended.exit_code == 0
        await eventually(lambda: asyncio.to_thread(running, sleep))


async def test_the_end_of_the_sandbox_finds_it(
    local_provider: LocalProvider, tmp_path: Path
) -> None:
    sleep = f"sleep 31537{id(tmp_path) % 100_000}"
    await hide(local_provider, sleep)
    assert not await gone(sleep)


async def test_the_next_workers_reaper_finds_it_and_spares_the_next_attempt(
    local_provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (f"sleep 3153{first}{id(tmp_path) % 100_000}" for first in (8, 9))
    label = tmp_path / "jobs" / JOB / "label.json"
    with monkeypatch.context() as dying:
        dying.setattr(
            "fanout.workers.sandbox.local.processes.kill_job", survives
        )  # it is killed before
        await hide(local_provider, old)
    of_dead = json.loads(label.read_text()) | {"started": "0"}
    async with local_provider.open(spec(2)) as sandbox:
        current = label.read_text()
        await sandbox.run(Command(argv=f"({new} >/dev/null 2>&1 &)"))
        assert not await gone(old), "the next attempt starts with a clean place"
        label.write_text(json.dumps(of_dead))  # as a reaper read it just before
        await local_provider.reap(everybody)
        assert await asyncio.to_thread(running, new)
        label.write_text(current)
    assert not await gone(new)


async def test_a_dead_workers_process_is_killed_while_its_job_waits_for_another_attempt(
    local_provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = f"sleep 31540{id(tmp_path) % 100_000}"
    label = tmp_path / "jobs" / JOB / "label.json"
    with monkeypatch.context() as dying:
        dying.setattr("fanout.workers.sandbox.local.processes.kill_job", survives)
        await hide(local_provider, sleep)
    label.write_text(json.dumps(json.loads(label.read_text()) | {"started": "0"}))

    await local_provider.reap(everybody)

    assert not await gone(sleep)
    assert (tmp_path / "jobs" / JOB / "tree").is_dir()


async def test_a_process_is_found_that_mounts_a_workspace_after_it_was_seen(tmp_path: Path) -> None:
    tree = tmp_path / "jobs" / JOB / "tree"
    await asyncio.to_thread(tree.mkdir, parents=True)
    if not await asyncio.to_thread(provider_module._mounts_work):
        pytest.skip("needs mount namespaces")
    mounts = f"echo; read _; mount --bind {tree} /workspace && echo && exec sleep 600"
    hidden = await asyncio.create_subprocess_exec(
        *("unshare", "-m", "--", "/bin/sh", "-c", mounts),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert hidden.stdin is not None
    assert hidden.stdout is not None
    await hidden.stdout.readline()
    assert await kill_job("none", tree)
    hidden.stdin.write(b"\n")
    await hidden.stdout.readline()

    assert await kill_job("none", tree)

    assert await hidden.wait() == -signal.SIGKILL
