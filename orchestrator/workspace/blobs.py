"""The blob store: content-addressed blobs in a directory or in object storage.

A blob's id is the SHA-256 of its content. A blob becomes visible only when it is complete, and
never changes.
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
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec

from fanout.orchestrator.jobs.failures import BlobCorrupt, BlobMissing, JobFailure
from fanout.orchestrator.private_files import close_folder, create_private_file, make_private_folder
from fanout.orchestrator.workspace.answering_files import NoAnswer, open_files, protocols_of
from fanout.orchestrator.workspace.hashed_files import CheckedFiles, HashingSink, corrupt

Result = TypeVar("Result")

CHUNK_BYTES = 1024 * 1024
"""Read at once: large enough that hashing, not the loop, takes the time."""

DEFAULT_CACHE_BYTES = 10 * 1024**3
"""The maximum size of a remote store's copies on this machine: five snapshots of the largest
size."""

CACHE_GRACE_SECONDS = 15 * 60
"""A copy used this recently is kept even in a full cache: its reader may not have opened it yet."""

REFRESH_SECONDS = 3600
"""A blob that is stored again, or kept for longer, gets a new time only when its time is older:
`sweep` compares times, and in an object store a new time requires a copy."""

ANSWER_SECONDS = 20.0
"""An object store answers within a second, and its driver's own repetitions take up to ten."""

ABANDONED_SECONDS = 24 * 3600
"""A partial file this old belongs to a dead process."""

_PUTS_ARE_ATOMIC = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})
"""Object stores show an object only when its upload is complete; in others a blob is uploaded under
another name and renamed."""


class BlobStoreUnusable(JobFailure):
    """The blob store cannot be reached, read or written; the text names the setting to check."""

    retryable = True
    depends_on_host = True


class BlobStore:
    """Blobs below an fsspec URL (`file://`, `memory://`, `s3://` …).

    All methods raise BlobStoreUnusable when the store fails, and those that read or keep a blob
    raise BlobMissing when the store does not have it.

    Args:
        url: The URL; a plain path is a directory.
        cache: A private directory for copies of a remote store's blobs; None: a temporary one.
        max_cache_bytes: The size above which the least recently used copies are removed.
        timeout_seconds: After how long without an answer a remote store fails.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: Path | None = None,
        max_cache_bytes: int = DEFAULT_CACHE_BYTES,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.url = url
        self._timeout_seconds = timeout_seconds
        with self._translated("opened"):
            protocol = fsspec.utils.get_protocol(url)
            self._is_local = "file" in protocols_of(fsspec.get_filesystem_class(protocol))
        self._cache = cache
        self._max_cache_bytes = max_cache_bytes
        self._checked = CheckedFiles()

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system and the path of the store in it; a driver may ask for its login first."""
        with self._translated("opened"):
            return open_files(self.url, None if self._is_local else self._timeout_seconds)

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _base(self) -> str:
        return self._opened[1]

    async def put(self, content: bytes) -> str:
        """Store `content`, and return its id."""
        return await self.put_file(io.BytesIO(content))

    async def put_file(self, source: Path | IO[bytes]) -> str:
        """Store a file, or a stream from its position to its end, and return its id."""
        if isinstance(source, Path):
            with await asyncio.to_thread(source.open, "rb") as stream:
                return await self.put_file(stream)
        blob_id, _ = await self.put_written(
            lambda sink: shutil.copyfileobj(source, sink, CHUNK_BYTES)
        )
        return blob_id

    async def put_written(self, write: Callable[[IO[bytes]], Result]) -> tuple[str, Result]:
        """Store the content that a function writes.

        Args:
            write: Called in a thread with a stream. When it raises, nothing is stored and the
                exception passes.

        Returns:
            The id, and what `write` returned.
        """
        return await asyncio.to_thread(self._put_written, write)

    async def get(self, blob_id: str) -> bytes:
        """Return a blob's content, checked against its id.

        Raises:
            BlobMissing: The store does not have the blob.
            BlobCorrupt: Its content does not match its id.
        """
        return await asyncio.to_thread(self._read, _checked(blob_id))

    async def fetch(self, blob_id: str) -> Path:
        """Return a local file with the blob's content, which the caller must not change.

        For a directory it is the blob itself, for a remote store a copy in the cache. Its content
        is checked unless it is known to be the same file as when it was last checked.

        Raises:
            BlobMissing: The store does not have the blob.
            BlobCorrupt: Its content does not match its id.
        """
        return await asyncio.to_thread(self._fetch, _checked(blob_id))

    async def exists(self, blob_id: str) -> bool:
        """Return whether the store has the blob."""
        return await asyncio.to_thread(self._exists, _checked(blob_id))

    async def keep(self, blob_id: str) -> None:
        """Give a blob a new time, so that `sweep` does not remove it.

        Raises:
            BlobMissing: The store does not have the blob.
        """
        await asyncio.to_thread(self._keep, _checked(blob_id))

    async def sweep(self, unused_since: float) -> int:
        """Remove the blobs that were last stored or kept before a time; return their number.

        Args:
            unused_since: The time in seconds since the epoch.
        """
        return await asyncio.to_thread(self._sweep, unused_since)

    async def delete(self, blob_id: str) -> None:
        """Remove a blob, if the store has it."""
        await asyncio.to_thread(self._delete, _checked(blob_id))

    def _put_written(self, write: Callable[[IO[bytes]], Result]) -> tuple[str, Result]:
        with self._partial_file() as (partial, sink):
            returned = write(cast("IO[bytes]", sink))
            sink.flush()
            blob_id = sink.hash.hexdigest()
            with self._translated("written"):
                self._publish(partial, blob_id)
        return blob_id, returned

    def _publish(self, partial: Path, blob_id: str) -> None:
        """Make a complete file visible under its id."""
        if not self._is_local and not self._is_fresh(self._remote_path(blob_id)):
            self._upload(partial, self._remote_path(blob_id))
        _rename(partial, self._local_path(blob_id))

    def _upload(self, source: Path, target: str) -> None:
        if _PUTS_ARE_ATOMIC.intersection(protocols_of(self._files)):
            self._files.put_file(str(source), target)
            return
        partial = f"{self._base}/incoming/{uuid4().hex}"
        for path in (partial, target):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(source), partial)
        self._files.mv(partial, target)

    def _fetch(self, blob_id: str) -> Path:
        local = self._located(blob_id)
        with self._translated("read"):
            try:
                self._checked.check(local, blob_id)
            except BlobCorrupt:
                if self._is_local:
                    raise
                local = self._located(blob_id)  # the copy was damaged, not the blob
        return local

    def _located(self, blob_id: str) -> Path:
        """Return the local file of a blob, which is downloaded if it is missing."""
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
        self._shrink_cache()
        with self._partial_file() as (partial, sink):
            with self._files.open(self._remote_path(blob_id), "rb") as remote:
                shutil.copyfileobj(remote, cast("IO[bytes]", sink), CHUNK_BYTES)
            sink.flush()
            if sink.hash.hexdigest() != blob_id:
                raise corrupt(blob_id)
            _rename(partial, local)

    def _shrink_cache(self) -> None:
        """Remove the least recently used copies while the cache exceeds its maximum size."""
        copies = []
        for path in self._local_root.glob("??/*"):
            with suppress(FileNotFoundError):  # another process removes copies too
                status = path.stat()
                copies.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in copies)
        for used_at, size, path in sorted(copies):
            if total <= self._max_cache_bytes or used_at > time.time() - CACHE_GRACE_SECONDS:
                return
            total -= size
            path.unlink(missing_ok=True)

    def _is_fresh(self, path: str) -> bool:
        """Return whether the store has an object that no sweep will remove soon."""
        expires_soon = time.time() - REFRESH_SECONDS
        return bool(self._files.exists(path)) and self._modified(path) > expires_soon

    def _modified(self, path: str) -> float:
        return float(self._files.modified(path).timestamp())

    def _keep(self, blob_id: str) -> None:
        if self._is_local:
            with self._translated("read"):
                os.utime(self._located(blob_id))
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

    def _read(self, blob_id: str) -> bytes:
        path = self._located(blob_id)
        with self._translated("read"):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != blob_id:
            path.unlink(missing_ok=True)
            raise corrupt(blob_id)
        return content

    @cached_property
    def _local_root(self) -> Path:
        """The directory of the blobs, or of their copies, on this machine."""
        if self._is_local:
            root = Path(self._base)
            for folder in root.glob("??"):  # an earlier release left them open
                with suppress(OSError):
                    close_folder(folder)
            return root
        if self._cache is not None:
            return self._cache
        self._temporary_cache = tempfile.TemporaryDirectory(prefix="fanout-blobs-")
        return Path(self._temporary_cache.name)

    @contextmanager
    def _partial_file(self) -> Iterator[tuple[Path, HashingSink]]:
        """Create a file for a partial blob; yields its path and a stream.

        It is removed afterwards, unless it was renamed.
        """
        with self._translated("written"):
            path = self._incoming() / uuid4().hex
            stream = create_private_file(path)
        try:
            with stream, closing(HashingSink(stream, self._translated)) as sink:
                yield path, sink
        finally:
            path.unlink(missing_ok=True)

    def _incoming(self) -> Path:
        """Return the directory for partial files, without those that dead processes left."""
        incoming = self._local_root / "incoming"
        make_private_folder(incoming)
        for path in incoming.iterdir():
            with suppress(FileNotFoundError):  # another process removes or renames them too
                if path.stat().st_mtime < time.time() - ABANDONED_SECONDS:
                    path.unlink()
        return incoming

    def _local_path(self, blob_id: str) -> Path:
        return self._local_root / blob_id[:2] / blob_id

    def _remote_path(self, blob_id: str) -> str:
        return f"{self._base}/{blob_id[:2]}/{blob_id}"

    @contextmanager
    def _translated(self, done: str) -> Iterator[None]:
        """Translate the errors of file systems and their libraries."""
        try:
            yield
        except JobFailure:
            raise
        except NoAnswer:
            raise BlobStoreUnusable(
                f"The blob store {_without_secrets(self.url)} has not answered for "
                f"{self._timeout_seconds:g} seconds: check FANOUT_BLOBS_URL and the network, or "
                "allow more time with FANOUT_BLOBS_TIMEOUT_SECONDS."
            ) from None
        except Exception as error:  # every fsspec driver raises errors of its own library
            if done == "read" and isinstance(error, FileNotFoundError):
                raise BlobMissing("A blob was removed from the store while it was read.") from error
            raise BlobStoreUnusable(
                f"The blob store {_without_secrets(self.url)} cannot be {done} ({_reason(error)}): "
                "check FANOUT_BLOBS_URL, its permissions and its free space."
            ) from error


def _checked(blob_id: str) -> str:
    """Return the id; raise BlobMissing for any other text, which must not become a path."""
    if re.fullmatch(r"[0-9a-f]{64}", blob_id) is None:
        raise _missing(blob_id[:80])
    return blob_id


def _missing(blob_id: str) -> BlobMissing:
    return BlobMissing(
        f"The blob {blob_id} is not in the store: it was deleted, "
        "or this process has another FANOUT_BLOBS_URL than the one that stored it."
    )


def _rename(partial: Path, path: Path) -> None:
    make_private_folder(path.parent)
    partial.replace(path)


def _reason(error: Exception) -> str:
    """Return a short cause; a driver's own text is left out, because it may quote credentials."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ImportError):
        return str(error)  # fsspec's text names the package to install
    return type(error).__name__


def _without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    location = parts.netloc.rpartition("@")[2] + parts.path
    return f"{parts.scheme}://{location}" if parts.scheme else location
