"""What comes back from a job is bounded where it is made, and again where it is read."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import IO

import pytest

from fanout.orchestrator.jobs.changes import MAX_MEMBERS, ChangeBundle, Changes, MalformedBundle
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.inside import change_bundle
from fanout.workers.sandbox.inside.change_bundle import write_bundle
from fanout.workers.sandbox.inside.change_scan import scan_trees
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import make_sandbox_spec

MIB = 1024**2


def make_bundle(root: Path) -> io.BytesIO:
    before, after = root / "before", root / "after"
    out = io.BytesIO()
    write_bundle(out, before, after, scan_trees(before, after))
    out.seek(0)
    return out


def changes_in(bundle: IO[bytes]) -> Changes:
    with ChangeBundle.open(bundle) as opened:
        return opened.changes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.mark.slow
def test_forty_thousand_empty_files_are_bounded_at_the_source_and_cheap_to_read(
    root: Path,
) -> None:
    for number in range(40_000):
        (root / "after" / f"file{number:05}").touch()

    bundle = make_bundle(root)
    size = len(bundle.getvalue())
    tracemalloc.start()
    changes = changes_in(bundle)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    print(f"bundle {size / MIB:.1f} MiB, reading takes {peak / MIB:.1f} MiB")
    assert len(changes.files) == change_bundle.MAX_CHANGES
    assert len(changes.skipped) == change_bundle.MAX_NAMED + 1
    assert changes.skipped[0].path == "file10000"
    assert "10000 changes at most" in changes.skipped[0].reason
    assert changes.skipped[-1].path == "(and 29000 more)"
    assert size < 8 * MIB
    assert peak < 48 * MIB


def test_by_products_take_no_room_from_changes_and_their_list_is_bounded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_bundle, "MAX_CHANGES", 10)
    monkeypatch.setattr(change_bundle, "MAX_NAMED", 5)
    (root / "after/node_modules/a").mkdir(parents=True)
    for number in range(100):
        (root / "after/node_modules/a" / str(number)).touch()
    (root / "after/zebra").write_text("kept")

    changes = changes_in(make_bundle(root))

    assert [file.path for file in changes.files] == ["zebra"]
    assert len(changes.ignored) == 6
    assert changes.ignored[-1] == "(and 95 more)"
    assert changes.skipped == ()


def test_long_paths_count_by_their_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_bundle, "MAX_LIST_BYTES", 20_000)
    for number in range(100):
        (root / "after" / ("x" * 200 + str(number))).touch()

    changes = changes_in(make_bundle(root))

    assert 20 < len(changes.files) < 30
    assert len(changes.files) + len(changes.skipped) == 100


def test_paths_beyond_what_is_compared_are_counted_and_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_bundle, "_MAX_PATHS_BYTES", 50)
    monkeypatch.setattr(change_bundle, "MAX_NAMED", 3)
    for number in range(100):
        (root / "after" / f"{number:05}").touch()

    changes = changes_in(make_bundle(root))

    assert len(changes.files) == 10
    assert changes.skipped[-1].path == "(and 87 more)"


def test_files_below_256_folders_are_named_as_skipped(root: Path) -> None:
    folder = os.open(root / "after", os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("deep", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    (root / "after/shallow").touch()

    changes = changes_in(make_bundle(root))

    assert [file.path for file in changes.files] == ["shallow"]
    assert len(changes.skipped) == 1
    assert "deeper than 256 folders" in changes.skipped[0].reason
    assert changes.skipped[0].path.startswith("d/d/d/")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.SYMTYPE])
def test_a_bundle_with_a_member_of_unbounded_size_in_its_headers_is_refused(kind: bytes) -> None:
    member = tarfile.TarInfo("changes.json")
    member.type, member.size = kind, 64 * MIB
    bundle = io.BytesIO(member.tobuf() + bytes(64 * MIB) + bytes(1024))

    tracemalloc.start()
    with pytest.raises(MalformedBundle):
        changes_in(bundle)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * MIB


@pytest.mark.slow
def test_a_bundle_with_too_many_members_or_too_long_a_list_is_refused() -> None:
    many, long = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=many, mode="w") as archive:
        for number in range(MAX_MEMBERS + 1):
            archive.addfile(tarfile.TarInfo(str(number)))
    document = json.dumps({"version": 1, "ignored": ["x" * 20 * MIB]}).encode()
    with tarfile.open(fileobj=long, mode="w") as archive:
        member = tarfile.TarInfo("changes.json")
        member.size = len(document)
        archive.addfile(member, io.BytesIO(document))

    for bundle in (many, long):
        bundle.seek(0)
        with pytest.raises(MalformedBundle, match=r"more than|larger than"):
            changes_in(bundle)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_job_with_too_many_files_ends_with_those_that_fit_and_names_the_rest(
    provider: DockerProvider,
) -> None:
    make = "for n in range(15_000): open(f'{n:05}', 'w').close()"
    spec = make_sandbox_spec()
    limits = spec.limits.model_copy(update={"disk_bytes": 256 * MIB})
    async with provider.open(make_sandbox_spec(limits=limits)) as sandbox:
        await sandbox.run(Command(argv=["python3", "-c", make]))
        with await sandbox.changes() as bundle:
            changes = await asyncio.to_thread(changes_in, bundle)

    assert len(changes.files) == change_bundle.MAX_CHANGES
    assert changes.skipped[-1].path == "(and 4000 more)"
