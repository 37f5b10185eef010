"""Renamed folders of an overlay: later attempts, jobs of a release before, forged marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command, Sandbox
from fanout.workers.sandbox.resident.client import ResidentClient
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

FILES = {"pkg/a.py": b"a\n" * 20, "pkg/sub/b.py": b"b\n" * 20, "deep/d/f.txt": b"f\n" * 20}
MOVE = "import os; os.rename('pkg', 'lib')"


async def ran(sandbox: Sandbox, script: str) -> tuple[int, str]:
    done = await sandbox.run(Command(argv=script))
    return done.exit_code, done.output.decode()


async def require_renaming(provider: DockerProvider) -> None:
    if reason := await provider.no_renaming():
        pytest.skip(reason)


def of_a_release_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stewards do without renaming, as those of a release before do."""
    genuine = ResidentClient.request

    async def request(self: ResidentClient, operation: str, *rest: Any, **more: Any) -> Any:
        if operation == "check_renaming":
            return {"no_renaming": "a release before"}, b""
        return await genuine(self, operation, *rest, **more)

    monkeypatch.setattr(ResidentClient, "request", request)


async def test_the_next_attempt_continues_with_renamed_folders(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    await require_renaming(provider)
    spec = make_sandbox_spec(snapshot=snapshots.add(FILES))
    async with provider.open(spec) as sandbox:
        assert await ran(sandbox, f'python3 -c "{MOVE}"') == (0, "")

    again = make_sandbox_spec(snapshot=spec.snapshot, job_id=spec.job_id, attempt=2)
    async with provider.open(again) as sandbox:
        assert await ran(sandbox, "cat lib/sub/b.py | head -n 1; mv lib/sub sub; ls pkg") == (
            2,
            "b\nls: cannot access 'pkg': No such file or directory\n",
        )
        assert await changed_paths(sandbox) == [("lib/a.py", "renamed"), ("sub/b.py", "renamed")]
    with await provider.collect_changes(spec.job_id) as bundle:
        assert bundle.read(1)


@pytest.mark.slow
async def test_without_an_overlay_folders_are_renamed_in_the_copy(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    provider._starts._overlay = False
    async with provider.open(make_sandbox_spec(snapshot=snapshots.add(FILES))) as sandbox:
        script = f'python3 -c "{MOVE}"; git init -q; git add -A; git mv deep deeper; rm -r .git'
        assert await ran(sandbox, script) == (0, "")
        assert await changed_paths(sandbox) == [
            ("deeper/d/f.txt", "renamed"),
            ("lib/a.py", "renamed"),
            ("lib/sub/b.py", "renamed"),
        ]


@pytest.mark.slow
async def test_where_the_steward_may_not_mount_a_folder_is_moved_by_a_copy(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    provider = make_provider(disk_quota="watch")
    assert await provider.no_renaming() == "the steward may not mount"
    async with provider.open(make_sandbox_spec(snapshot=snapshots.add(FILES))) as sandbox:
        assert (await ran(sandbox, f'python3 -c "{MOVE}"'))[0] == 1
        assert await ran(sandbox, "mv pkg lib; mkdir pkg; touch pkg/new") == (0, "")
        assert await changed_paths(sandbox) == [
            ("lib/a.py", "renamed"), ("lib/sub/b.py", "renamed"), ("pkg/new", "added"),
        ]  # fmt: skip


async def test_a_job_of_a_release_before_goes_on_as_it_began_and_is_collected(
    make_provider: Callable[..., DockerProvider],
    snapshots: SnapshotFolder,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_sandbox_spec(snapshot=snapshots.add(FILES))
    with monkeypatch.context() as patched:
        of_a_release_before(patched)
        before = make_provider()
        async with before.open(spec) as sandbox:
            assert (await ran(sandbox, f'python3 -c "{MOVE}"'))[0] == 1
            script = "rm -r deep; mkdir deep; echo 1 > deep/new; mv pkg lib"
            assert await ran(sandbox, script) == (0, "")
            files_id = sandbox.files_id

    now = make_provider()
    await require_renaming(now)
    again = make_sandbox_spec(snapshot=spec.snapshot, job_id=spec.job_id, attempt=2)
    async with now.open(again) as sandbox:
        assert sandbox.files_id == files_id
        assert await ran(sandbox, "cat deep/new; mv lib/sub sub; ls deep") == (0, "1\nnew\n")
        assert sorted(await changed_paths(sandbox)) == [
            ("deep/d/f.txt", "deleted"),
            ("deep/new", "added"),
            ("lib/a.py", "renamed"),
            ("sub/b.py", "renamed"),
        ]
        (name,) = now._names.of_job(spec.job_id)[:1]
        volumes = await engine.volumes(now._names.of_installation)
        (options,) = [volume["Options"]["o"] for volume in volumes if volume["Name"] == name]
        assert "userxattr" in options


async def test_a_release_before_never_mounts_an_upper_layer_with_renames(
    make_provider: Callable[..., DockerProvider],
    snapshots: SnapshotFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = make_provider()
    await require_renaming(now)
    spec = make_sandbox_spec(snapshot=snapshots.add(FILES))
    async with now.open(spec) as sandbox:
        assert await ran(sandbox, f'python3 -c "{MOVE}"') == (0, "")
        files_id = sandbox.files_id

    of_a_release_before(monkeypatch)
    before = make_provider()
    again = make_sandbox_spec(snapshot=spec.snapshot, job_id=spec.job_id, attempt=2)
    async with before.open(again) as sandbox:
        assert sandbox.files_id != files_id  # so the attempt restores its last checkpoint
        assert await ran(sandbox, "cat pkg/a.py | head -n 1") == (0, "a\n")


async def test_a_job_forges_no_marks_of_the_overlay(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    await require_renaming(provider)
    forge = """
import os
for name, value in (("redirect", b"/deep"), ("redirect", b"/../../../etc"), ("opaque", b"y")):
    for prefix in ("trusted.overlay.", "user.overlay."):
        for folder in ("made", "pkg"):
            try:
                os.setxattr(folder, prefix + name, value)
            except OSError:
                assert prefix == "trusted.overlay." or folder == "pkg"
            else:
                assert prefix == "user.overlay."
"""
    async with provider.open(make_sandbox_spec(snapshot=snapshots.add(FILES))) as sandbox:
        await sandbox.write_bytes("/tmp/forge.py", forge.encode())
        assert await ran(sandbox, "mkdir made; touch made/x pkg/y; python3 /tmp/forge.py") == (
            0,
            "",
        )
        assert await changed_paths(sandbox) == [("made/x", "added"), ("pkg/y", "added")]
