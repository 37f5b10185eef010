"""Content-addressed blobs behind one URL: a directory on one machine, object storage on many.

A blob's id is the SHA-256 of its content. A blob appears whole or not at all, and never changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec

from orchestrator.jobs.failures import BlobMissing, JobFailure

Result = TypeVar("Result")

CHUNK_BYTES = 1024 * 1024
"""How much is read at once: large enough that the hash, not the loop, takes the time."""

DEFAULT_CACHE_BYTES = 10 * 1024**3
"""What the copies of a remote store may take on this machine: five snapshots of the largest
size."""

CACHE_GRACE_SECONDS = 15 * 60
"""A copy used this recently is kept whatever the cache's size: its reader may not have opened it
yet."""

REFRESH_SECONDS = 3600
"""A blob that is stored again, or wanted for longer, gets a new time when it has one older than
this: `sweep` goes by it, and in an object store a new time costs a copy."""

ABANDONED_SECONDS = 24 * 3600
"""A half-written file this old belongs to a process that died."""

_PUTS_ARE_ATOMIC = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})
"""Object stores show an object only when its upload is complete; elsewhere we upload aside and
rename."""


class BlobStoreUnusable(JobFailure):
    """The blob store cannot be reached, read or written.

    The message names the setting to look at.
    """

    retryable = True


class BlobStore:
    """Blobs below an fsspec URL (`file://`, `memory://`, `s3://` …).

    All methods raise `BlobStoreUnusable` when the store fails, and `BlobMissing` when an id is not
    in it.

    Args:
        url: where the blobs are; a plain path is a directory.
        cache: a private directory for copies of a remote store's blobs; None makes a temporary one.
        max_cache_bytes: the size above which the longest unused copies go.
    """

    def __init__(
        self, url: str, *, cache: Path | None = None, max_cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        self.url = url
        with self._translated("opened"):
            self._files, self._base = fsspec.core.url_to_fs(url)
        self._is_local = "file" in _protocols(self._files)
        self._cache = cache
        self._max_cache_bytes = max_cache_bytes

    async def put(self, content: bytes) -> str:
        """Store `content`; its id."""
        return await self.put_file(io.BytesIO(content))

    async def put_file(self, source: Path | IO[bytes]) -> str:
        """Store a file, or a stream from where it stands to its end; its id."""
        if isinstance(source, Path):
            with await asyncio.to_thread(source.open, "rb") as stream:
                return await self.put_file(stream)
        blob_id, _ = await self.put_written(
            lambda sink: shutil.copyfileobj(source, sink, CHUNK_BYTES)
        )
        return blob_id

    async def put_written(self, write: Callable[[IO[bytes]], Result]) -> tuple[str, Result]:
        """Store what `write` writes; the id, and what `write` returned.

        `write` runs in a thread. When it raises, nothing is stored and the error passes.
        """
        return await asyncio.to_thread(self._put_written, write)

    async def get(self, blob_id: str) -> bytes:
        """A blob's content, checked against its id."""
        path = await self.fetch(blob_id)
        content = await asyncio.to_thread(self._read, path)
        if hashlib.sha256(content).hexdigest() != blob_id:
            raise BlobMissing(f"The blob {blob_id} is damaged: its content does not match its id.")
        return content

    async def fetch(self, blob_id: str) -> Path:
        """A local file with the blob's content, not to be changed.

        Of a directory it is the blob itself; of a remote store a checked copy in the cache.
        """
        return await asyncio.to_thread(self._fetch, _checked(blob_id))

    async def exists(self, blob_id: str) -> bool:
        """Whether the store has the blob."""
        return await asyncio.to_thread(self._exists, _checked(blob_id))

    async def keep(self, blob_id: str) -> None:
        """Make a blob count as new for `sweep`."""
        await asyncio.to_thread(self._keep, _checked(blob_id))

    async def sweep(self, unused_since: float) -> int:
        """Remove the blobs last stored or kept before that time, in seconds since the epoch.

        How many.
        """
        return await asyncio.to_thread(self._sweep, unused_since)

    async def delete(self, blob_id: str) -> None:
        """Remove a blob; removing one that is not there is fine."""
        await asyncio.to_thread(self._delete, _checked(blob_id))

    def _put_written(self, write: Callable[[IO[bytes]], Result]) -> tuple[str, Result]:
        with self._translated("written"):
            incoming = self._incoming()
        partial = incoming / uuid4().hex
        try:
            with self._translated("written"):
                stream = partial.open("xb")
            with stream:
                sink = _HashingSink(stream, self._translated)
                returned = write(cast("IO[bytes]", sink))
                with self._translated("written"):
                    stream.flush()
            blob_id = sink.hash.hexdigest()
            with self._translated("written"):
                self._publish(partial, blob_id)
        finally:
            partial.unlink(missing_ok=True)
        return blob_id, returned

    def _publish(self, partial: Path, blob_id: str) -> None:
        """Make a finished file visible under its id."""
        if not self._is_local and not self._is_fresh(self._remote_path(blob_id)):
            self._upload(partial, self._remote_path(blob_id))
        local = self._local_path(blob_id)
        local.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(local)

    def _upload(self, source: Path, target: str) -> None:
        if _PUTS_ARE_ATOMIC.intersection(_protocols(self._files)):
            self._files.put_file(str(source), target)
            return
        aside = f"{self._base}/incoming/{uuid4().hex}"
        for path in (aside, target):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(source), aside)
        self._files.mv(aside, target)

    def _fetch(self, blob_id: str) -> Path:
        local = self._local_path(blob_id)
        with self._translated("read"):
            if local.is_file():
                if not self._is_local:
                    os.utime(local)
                return local
            if self._is_local or not self._files.exists(self._remote_path(blob_id)):
                raise _missing(blob_id)
            self._download(blob_id, local)
        return local

    def _download(self, blob_id: str, local: Path) -> None:
        self._make_room()
        partial = self._incoming() / uuid4().hex
        try:
            with (
                partial.open("xb") as stream,
                self._files.open(self._remote_path(blob_id), "rb") as remote,
            ):
                sink = _HashingSink(stream, self._translated)
                shutil.copyfileobj(remote, cast("IO[bytes]", sink), CHUNK_BYTES)
            if sink.hash.hexdigest() != blob_id:
                raise BlobMissing(
                    f"The blob {blob_id} is damaged: its content does not match its id."
                )
            local.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Drop the longest unused copies while the cache is over its size."""
        copies = []
        for path in self._local_root.glob("??/*"):
            with suppress(FileNotFoundError):  # another process makes room too
                status = path.stat()
                copies.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in copies)
        for used_at, size, path in sorted(copies):
            if total <= self._max_cache_bytes or used_at > time.time() - CACHE_GRACE_SECONDS:
                return
            total -= size
            path.unlink(missing_ok=True)

    def _is_fresh(self, path: str) -> bool:
        """Whether the store has an object that no sweep will take soon."""
        return (
            bool(self._files.exists(path)) and self._modified(path) > time.time() - REFRESH_SECONDS
        )

    def _modified(self, path: str) -> float:
        return float(self._files.modified(path).timestamp())

    def _keep(self, blob_id: str) -> None:
        if self._is_local:
            with self._translated("read"):
                os.utime(self._fetch(blob_id))
        elif not self._is_fresh(self._remote_path(blob_id)):
            with self._translated("written"):
                self._upload(self._fetch(blob_id), self._remote_path(blob_id))

    def _sweep(self, unused_since: float) -> int:
        removed = 0
        with self._translated("written"):
            for path in self._files.glob(f"{self._base}/??/*"):
                if self._modified(path) < unused_since:
                    self._delete(_checked(path.rpartition("/")[2]))
                    removed += 1
        return removed

    def _exists(self, blob_id: str) -> bool:
        with self._translated("read"):
            return bool(self._files.exists(self._remote_path(blob_id)))

    def _delete(self, blob_id: str) -> None:
        with self._translated("written"):
            self._local_path(blob_id).unlink(missing_ok=True)
            if not self._is_local and self._files.exists(self._remote_path(blob_id)):
                self._files.rm_file(self._remote_path(blob_id))

    def _read(self, path: Path) -> bytes:
        with self._translated("read"):
            return path.read_bytes()

    @cached_property
    def _local_root(self) -> Path:
        """Where blobs, or their copies, are files of this machine."""
        if self._is_local:
            return Path(self._base)
        if self._cache is not None:
            return self._cache
        self._temporary_cache = tempfile.TemporaryDirectory(prefix="fanout-blobs-")
        return Path(self._temporary_cache.name)

    def _incoming(self) -> Path:
        """The directory for half-written files, swept of those that dead processes left."""
        incoming = self._local_root / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        for path in incoming.iterdir():
            if _age_seconds(path) > ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        return incoming

    def _local_path(self, blob_id: str) -> Path:
        return self._local_root / blob_id[:2] / blob_id

    def _remote_path(self, blob_id: str) -> str:
        return f"{self._base}/{blob_id[:2]}/{blob_id}"

    @contextmanager
    def _translated(self, done: str) -> Iterator[None]:
        """The one place where errors of file systems and their libraries become ours."""
        try:
            yield
        except JobFailure:
            raise
        except Exception as error:  # every fsspec driver raises errors of its own library
            if done == "read" and isinstance(error, FileNotFoundError):
                raise BlobMissing("A blob vanished from the store while it was read.") from error
            raise BlobStoreUnusable(
                f"The blob store {_without_secrets(self.url)} cannot be {done} ({_reason(error)}): "
                "check FANOUT_BLOBS_URL, its permissions and its free space."
            ) from error


class _HashingSink:
    """A write-only stream that hashes what passes.

    A write's error is the store's, not the writer's.
    """

    def __init__(self, target: IO[bytes], translated: Callable[[str], Any]) -> None:
        self.hash = hashlib.sha256()
        self._target = target
        self._translated = translated
        self._written = 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        with self._translated("written"):
            self._target.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written


def _protocols(files: Any) -> tuple[str, ...]:
    """The URL schemes of an fsspec file system, which gives one or several."""
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _checked(blob_id: str) -> str:
    """The id itself: anything else must not become a path."""
    if re.fullmatch(r"[0-9a-f]{64}", blob_id) is None:
        raise _missing(blob_id[:80])
    return blob_id


def _missing(blob_id: str) -> BlobMissing:
    return BlobMissing(
        f"The blob {blob_id} is not in the store: it was deleted, "
        "or this process has another FANOUT_BLOBS_URL than the one that stored it."
    )


def _reason(error: Exception) -> str:
    """What went wrong in a few words; a driver's own text may quote credentials and is left out."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ImportError):
        return str(error)  # fsspec names the package to install
    return type(error).__name__


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _without_secrets(url: str) -> str:
    """A URL without user, password, query and fragment."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2] + parts.path
    return f"{parts.scheme}://{place}" if parts.scheme else place
