import asyncio
import functools
import hashlib
import io
import os
import socket
import threading
import time
import uuid
from pathlib import Path

import fsspec
import pytest

from fanout.orchestrator.jobs.failures import BlobMissing
from fanout.orchestrator.workspace import blobs as blobs_module
from fanout.orchestrator.workspace.blobs import (
    ABANDONED_SECONDS,
    CACHE_GRACE_SECONDS,
    AnsweringFiles,
    BlobStore,
    BlobStoreUnusable,
    NoAnswer,
    in_time,
)

pytestmark = pytest.mark.blocks_loop("the stand-in for a store is a socket of the test's own")

ABSENT = "0" * 64


@pytest.fixture(params=["file", "memory", "path"])
def url(request, tmp_path):
    match request.param:
        case "file":
            return (tmp_path / "with space" / "blobs").as_uri().replace("%20", " ")
        case "memory":
            return f"memory://{uuid.uuid4().hex}"
        case _:
            return str(tmp_path / "blobs")


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_blob_comes_back_under_the_hash_of_its_content(url):
    store = BlobStore(url)

    blob_id = await store.put(b"content")

    assert blob_id == hashlib.sha256(b"content").hexdigest()
    assert await store.get(blob_id) == b"content"
    assert (await store.fetch(blob_id)).read_bytes() == b"content"
    assert await store.exists(blob_id)


async def test_files_and_streams_are_stored_alike(url, tmp_path):
    store = BlobStore(url)
    content = os.urandom(3_000_000)
    (tmp_path / "source").write_bytes(content)

    from_path = await store.put_file(tmp_path / "source")
    from_stream = await store.put_file(io.BytesIO(content))

    assert from_path == from_stream == hashlib.sha256(content).hexdigest()
    assert await store.get(from_path) == content


async def test_another_store_of_the_same_url_has_the_blob(url):
    blob_id = await BlobStore(url).put(b"content")

    assert await BlobStore(url).get(blob_id) == b"content"


async def test_a_deleted_blob_is_missing_in_words(url):
    store = BlobStore(url)
    blob_id = await store.put(b"content")

    await store.delete(blob_id)
    await store.delete(blob_id)

    assert not await store.exists(blob_id)
    with pytest.raises(BlobMissing, match="FANOUT_BLOBS_URL"):
        await store.get(blob_id)


@pytest.mark.parametrize("blob_id", ["../../etc/passwd", "", "A" * 64, ABSENT + "\n", ABSENT])
async def test_what_is_no_id_or_not_there_is_missing(url, blob_id):
    with pytest.raises(BlobMissing):
        await BlobStore(url).fetch(blob_id)


async def test_many_puts_of_one_content_are_one_blob(url):
    store = BlobStore(url)

    ids = await asyncio.gather(*(store.put(b"x" * 100_000) for _ in range(30)))

    assert len(set(ids)) == 1
    assert len(await store.get(ids[0])) == 100_000


async def test_a_put_that_fails_leaves_nothing(tmp_path):
    store = BlobStore(str(tmp_path))

    def fail(sink):
        sink.write(b"half")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        await store.put_written(fail)

    assert files_below(tmp_path) == []


async def test_a_half_written_blob_is_never_visible(url):
    store = BlobStore(url)
    seen = []

    def slowly(sink):
        for _ in range(3):
            sink.write(b"part")
            seen.append(store._files.find(store._base))

    blob_id, _ = await store.put_written(slowly)

    assert not [path for paths in seen for path in paths if "incoming" not in path]
    assert await store.exists(blob_id)


async def test_what_a_dead_process_left_half_written_is_swept(tmp_path):
    store = BlobStore(str(tmp_path))
    (tmp_path / "incoming").mkdir()
    old, young = tmp_path / "incoming/old", tmp_path / "incoming/young"
    old.touch()
    young.touch()
    past = time.time() - ABANDONED_SECONDS - 1
    os.utime(old, (past, past))

    await store.put(b"content")

    assert (old.exists(), young.exists()) == (False, True)


async def test_damage_in_a_remote_store_is_noticed(tmp_path):
    url = f"memory://{uuid.uuid4().hex}"
    blob_id = await BlobStore(url).put(b"content")
    files, base = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{base}/{blob_id[:2]}/{blob_id}", b"something else")

    with pytest.raises(BlobMissing, match="damaged"):
        await BlobStore(url, cache=tmp_path).fetch(blob_id)

    assert files_below(tmp_path) == []


async def test_damage_in_a_directory_is_noticed_when_read(tmp_path):
    store = BlobStore(str(tmp_path))
    blob_id = await store.put(b"content")
    (await store.fetch(blob_id)).write_bytes(b"something else")

    with pytest.raises(BlobMissing, match="damaged"):
        await store.get(blob_id)


async def test_the_cache_of_a_remote_store_drops_what_was_not_used_for_long(tmp_path):
    store = BlobStore(f"memory://{uuid.uuid4().hex}", cache=tmp_path, max_cache_bytes=1500)
    used, unused, fresh = [await store.put(bytes([number]) * 1000) for number in range(3)]
    past = time.time() - CACHE_GRACE_SECONDS - 60
    for blob_id, used_at in ((used, past + 30), (unused, past)):
        os.utime(tmp_path / blob_id[:2] / blob_id, (used_at, used_at))
    (tmp_path / fresh[:2] / fresh).unlink()

    await store.fetch(fresh)

    assert {path.name for path in files_below(tmp_path)} == {used, fresh}
    assert await store.get(unused) == bytes([1]) * 1000


@pytest.mark.parametrize("place", ["/dev/null/blobs", "/proc/blobs"])
async def test_a_folder_that_cannot_be_written_is_said_with_the_setting(place):
    with pytest.raises(BlobStoreUnusable, match=r"cannot be written.*FANOUT_BLOBS_URL"):
        await BlobStore(place).put(b"content")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_said_with_the_setting(tmp_path, monkeypatch):
    full = functools.partial(Path("/dev/full").open, "wb")
    monkeypatch.setattr(blobs_module, "create_private_file", lambda _: full())

    with pytest.raises(BlobStoreUnusable, match=r"No space left on device.*FANOUT_BLOBS_URL"):
        await BlobStore(str(tmp_path)).put(b"x" * 1_000_000)


async def test_large_and_small_pieces_are_stored_in_their_order(tmp_path):
    pieces = [bytes([number]) * (2_000_000 if number % 3 else 7) for number in range(12)]
    reused = bytearray(b"a" * 1_000_000)

    def write(sink):
        for piece in pieces:
            sink.write(piece)
        sink.write(memoryview(reused))
        reused[:] = b"b" * len(reused)
        sink.write(memoryview(reused))

    store = BlobStore(str(tmp_path))
    blob_id, _ = await store.put_written(write)

    content = b"".join([*pieces, b"a" * 1_000_000, b"b" * 1_000_000])
    assert blob_id == hashlib.sha256(content).hexdigest()
    assert await store.get(blob_id) == content


async def test_a_writer_that_fails_in_the_middle_of_a_large_piece_stores_nothing(tmp_path):
    def write(sink):
        sink.write(b"x" * 2_000_000)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await BlobStore(str(tmp_path)).put_written(write)

    assert files_below(tmp_path) == []


def test_an_unknown_scheme_and_a_missing_driver_are_said_without_secrets():
    with pytest.raises(BlobStoreUnusable, match="FANOUT_BLOBS_URL"):
        BlobStore("nonsense://key:secret@place")
    with pytest.raises(BlobStoreUnusable) as failure:
        BlobStore("nonsense://key:secret@place")
    assert "secret" not in str(failure.value)


async def test_a_store_that_accepts_and_never_answers_is_an_error_after_the_set_time(tmp_path):
    fsspec.filesystem("http")  # imports its driver
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}/blobs"
        store = BlobStore(url, cache=tmp_path, timeout_seconds=0.2)
        for call in (store.put(b"x"), store.get(ABSENT), store.exists(ABSENT), store.sweep(0)):
            with pytest.raises(BlobStoreUnusable, match=r"has not answered for 0.2 seconds: check"):
                await call


async def test_an_upload_and_a_download_that_stop_in_the_middle_are_errors_too(tmp_path):
    waits = threading.Event()
    blob_id = await BlobStore("memory://stops").put(b"content")
    files = fsspec.filesystem("memory")
    stopped = AnsweringFiles(files, 0.2)

    with pytest.raises(NoAnswer):
        in_time(0.2, waits.wait)
    with stopped.open(f"/stops/{blob_id[:2]}/{blob_id}", "rb") as stream:
        assert stream.read(3) == b"con"
        stream._stream.read = lambda _: waits.wait()
        with pytest.raises(NoAnswer):
            stream.read(3)
    waits.set()


def test_what_a_store_raises_is_not_taken_for_silence():
    def too_late():
        raise TimeoutError("the driver's own")

    with pytest.raises(TimeoutError, match="own"):
        in_time(5, too_late)
