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
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoResult
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import IO, Any, Self, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec

from ..jobs.failures import BlobCorrupt, BlobMissing, JobFailure
from ..private_files import close_folder, create_private_file, make_private_folder

SLOWEST_BYTES_PER_SECOND = 256 * 1024
"""The slowest upload that is tolerated. An upload is one call of a driver, whose time limit grows
with the file. At a lower rate the largest workspace would take more than two hours."""
LARGE_BYTES = 256 * 1024
"""The size from which another thread is worthwhile: passing a piece to it takes as long as hashing
40 KiB."""
MAX_CHECKED = 10_000
"""The most files that are remembered as checked: more than a worker reads in a day."""
Result = TypeVar("Result")

CHUNK_BYTES = 1024 * 1024
"""The bytes read at once: enough that hashing takes the time, not the loop."""

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


class NoAnswer(Exception):
    """A store did not answer in time; its call continues in its thread and is ignored."""


class AnsweringFiles:
    """An fsspec file system whose calls have a time limit.

    Every call raises NoAnswer when it takes longer, and otherwise what the file system raises.

    Args:
        files: The file system.
        timeout_seconds: The limit of a call, in addition to the time for the bytes of an upload.
    """

    def __init__(self, files: Any, timeout_seconds: float) -> None:
        self._files = files
        self._seconds = timeout_seconds
        self.protocol = files.protocol

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the file system with the time limit."""
        return partial(in_time, self._seconds, getattr(self._files, name))

    def put_file(self, source: str, target: str) -> None:
        """Upload a file."""
        seconds = self._seconds + Path(source).stat().st_size / SLOWEST_BYTES_PER_SECOND
        in_time(seconds, self._files.put_file, source, target)

    def open(self, path: str, mode: str) -> AnsweringStream:
        """Open a file to read."""
        return AnsweringStream(in_time(self._seconds, self._files.open, path, mode), self._seconds)


class AnsweringStream:
    """A file of such a file system, for reading; each block has the time limit.

    Args:
        stream: The file.
        timeout_seconds: The limit.
    """

    def __init__(self, stream: Any, timeout_seconds: float) -> None:
        self._stream = stream
        self._seconds = timeout_seconds

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, which sends no request to the server."""
        self._stream.close()

    def read(self, size: int) -> bytes:
        """Read a block."""
        return bytes(in_time(self._seconds, self._stream.read, size))


def open_files(url: str, timeout_seconds: float | None) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Args:
        url: The URL; a plain path is a local one.
        timeout_seconds: The limit of each call, this one included; None: no limit, in this thread.

    Raises:
        NoAnswer: The driver waits for something.
        Exception: Whatever the driver raises.
    """
    if timeout_seconds is None:
        files, path = fsspec.core.url_to_fs(url)
        return files, path
    files, path = in_time(timeout_seconds, fsspec.core.url_to_fs, url)
    return AnsweringFiles(files, timeout_seconds), path


def list_protocols(files: Any) -> tuple[str, ...]:
    """Return the URL schemes of an fsspec file system, which has one or several."""
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def in_time(seconds: float, call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Return the result of a call that returns within a time limit.

    A call that takes longer continues in its thread, which does not keep the process alive.

    Raises:
        NoAnswer: The call takes longer.
        Exception: Any exception of the call.
    """
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - is raised by the caller
            answer.set_exception(error)

    Thread(target=run, name="blob-store", daemon=True).start()
    try:
        return answer.result(seconds)
    except NoResult:
        if answer.done():
            raise  # an exception of the call
        raise NoAnswer from None


class CheckedFiles:
    """Compares files with their ids, each file once as long as it is unchanged."""

    def __init__(self) -> None:
        self._checked: dict[str, tuple[int, ...]] = {}

    def check(self, path: Path, blob_id: str) -> None:
        """Compare a file's content with its id; a damaged one is removed, so that it can be stored.

        Raises:
            BlobCorrupt: They do not match.
            OSError: The file cannot be read.
        """
        with path.open("rb") as stream:
            stamp = _stamp(stream)
            if self._checked.get(blob_id) == stamp:
                return
            if hashlib.file_digest(stream, "sha256").hexdigest() != blob_id:
                path.unlink(missing_ok=True)
                raise corrupt(blob_id)
            if _stamp(stream) == stamp:
                self._checked[blob_id] = stamp
        while len(self._checked) > MAX_CHECKED:
            self._checked.pop(next(iter(self._checked)), None)


class HashingSink:
    """A write-only stream that hashes its content; its errors are translated as the store's.

    A large piece is hashed and written in another thread, while the caller makes the next one; its
    errors are raised by the next call. `close` ends that thread.
    """

    def __init__(self, target: IO[bytes], translated: Callable[[str], Any]) -> None:
        self.hash = hashlib.sha256()
        """The hash of the content; complete after `flush`."""
        self._target = target
        self._translated = translated
        self._other = ThreadPoolExecutor(1, "blob")  # has no thread before the first large piece
        self._pending: Future[int] | None = None

    def write(self, data: bytes) -> int:
        """Hash and write data."""
        self._finish_pending()
        if isinstance(data, bytes) and len(data) >= LARGE_BYTES:
            self._pending = self._other.submit(self._write, data)
            return len(data)
        return self._write(data)

    def flush(self) -> None:
        """Write the buffered data."""
        self._finish_pending()
        with self._translated("written"):
            self._target.flush()

    def tell(self) -> int:
        """Return the position in the target."""
        self._finish_pending()
        return self._target.tell()

    def close(self) -> None:
        """Wait until pending data is written; nothing is raised."""
        self._other.shutdown()

    def _finish_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _write(self, data: bytes) -> int:
        self.hash.update(data)
        with self._translated("written"):
            return self._target.write(data)


def corrupt(blob_id: str) -> BlobCorrupt:
    """Return the failure of a blob whose content does not match its id."""
    return BlobCorrupt(
        f"The blob {blob_id} is damaged: its content does not match its id. Submit the job again, "
        "and check who else can write to FANOUT_BLOBS_URL."
    )


def _stamp(stream: IO[bytes]) -> tuple[int, ...]:
    """Return a value that differs for another file, and for the same file after a change."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


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
        timeout_seconds: The time without an answer after which a remote store fails.
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
            self._is_local = "file" in list_protocols(fsspec.get_filesystem_class(protocol))
        self._cache = cache
        self._max_cache_bytes = max_cache_bytes
        self._checked = CheckedFiles()

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system and the store's path in it; a driver may log in first."""
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
        if _PUTS_ARE_ATOMIC.intersection(list_protocols(self._files)):
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
