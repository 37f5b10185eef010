"""Somebody else writes into the store of the blobs: nobody works with their content."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from fanout.orchestrator.jobs.failures import BlobCorrupt
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.workspace import Workspace

CONTENT = b"a snapshot" * 100_000


def path_of(folder: Path, blob_id: str) -> Path:
    return folder / blob_id[:2] / blob_id


@pytest.mark.parametrize("forged", [b"", b"forged", CONTENT[:-1], b"x" * len(CONTENT)])
async def test_a_changed_blob_of_a_shared_folder_is_refused(tmp_path: Path, forged: bytes) -> None:
    mine, theirs = BlobStore(str(tmp_path)), BlobStore(str(tmp_path))
    blob_id = await mine.put(CONTENT)
    path_of(tmp_path, blob_id).write_bytes(forged)

    with pytest.raises(BlobCorrupt, match=r"does not match its id.*FANOUT_BLOBS_URL"):
        await theirs.fetch(blob_id)
    path_of(tmp_path, blob_id).write_bytes(forged)
    with pytest.raises(BlobCorrupt):
        await theirs.get(blob_id)


async def test_a_blob_that_is_changed_after_it_was_read_is_refused(tmp_path: Path) -> None:
    blobs = BlobStore(str(tmp_path))
    blob_id = await blobs.put(CONTENT)
    path = await blobs.fetch(blob_id)
    status = await asyncio.to_thread(path.stat)
    path.write_bytes(b"x" * len(CONTENT))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had happened

    with pytest.raises(BlobCorrupt):
        await blobs.fetch(blob_id)


async def test_a_corrupt_blob_is_no_reason_to_try_again(tmp_path: Path) -> None:
    blobs = BlobStore(str(tmp_path))
    blob_id = await blobs.put(CONTENT)
    path_of(tmp_path, blob_id).write_bytes(b"forged")

    with pytest.raises(BlobCorrupt) as failure:
        await blobs.fetch(blob_id)

    assert failure.value.as_error().retryable is False
    assert failure.value.as_error().type == "BlobCorrupt"


async def test_storing_the_content_again_heals_the_store(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a").write_bytes(CONTENT)
    blobs, workspace = BlobStore(str(tmp_path / "blobs")), Workspace(tmp_path / "root")
    blob_id = await workspace.snapshot(blobs)
    path_of(tmp_path / "blobs", blob_id).write_bytes(b"forged")
    with pytest.raises(BlobCorrupt):
        await blobs.fetch(blob_id)

    assert await workspace.snapshot(blobs) == blob_id
    assert (await blobs.fetch(blob_id)).is_file()


async def test_a_changed_blob_of_a_bucket_is_refused(tmp_path: Path) -> None:
    blob_id = await BlobStore("memory://forged", cache=tmp_path / "one").put(CONTENT)
    fsspec.filesystem("memory").pipe(f"/forged/{blob_id[:2]}/{blob_id}", b"forged")

    with pytest.raises(BlobCorrupt):
        await BlobStore("memory://forged", cache=tmp_path / "two").fetch(blob_id)


async def test_a_changed_copy_of_a_bucket_is_fetched_anew(tmp_path: Path) -> None:
    blobs = BlobStore("memory://copies", cache=tmp_path)
    blob_id = await blobs.put(CONTENT)
    path_of(tmp_path, blob_id).write_bytes(b"forged")

    assert (await blobs.fetch(blob_id)).read_bytes() == CONTENT


async def test_an_unchanged_blob_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = BlobStore(str(tmp_path))
    blob_id = await blobs.put(CONTENT)
    hashed: list[str] = []
    real = hashlib.file_digest

    def counted(stream: Any, name: str) -> Any:
        hashed.append(name)
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    for _ in range(3):
        await blobs.fetch(blob_id)

    assert len(hashed) == 1
