"""Prepared environments: made once, below the files of many jobs, changed by none."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import SetupFailed
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.environment import EnvironmentRequest, SetupStep
from fanout.workers.sandbox.protocol import Command, Sandbox
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec

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
