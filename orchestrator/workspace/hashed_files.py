"""Files that are compared with the SHA-256 that names them, when they are written and read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from fanout.orchestrator.jobs.failures import BlobCorrupt

LARGE_BYTES = 256 * 1024
"""The size from which another thread pays: handing a piece over takes as long as hashing 40 KiB."""
MAX_CHECKED = 10_000
"""So many files are remembered as checked: more than a worker reads in a day."""


class CheckedFiles:
    """Compares files with their ids, each once as long as it is the same file."""

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
        """Complete after `flush`."""
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
        """Write what is buffered."""
        self._finish_pending()
        with self._translated("written"):
            self._target.flush()

    def tell(self) -> int:
        """Return the position in the target."""
        self._finish_pending()
        return self._target.tell()

    def close(self) -> None:
        """Wait for what is being written; nothing is raised."""
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
    """Return the failure of a blob whose content is not the one of its id."""
    return BlobCorrupt(
        f"The blob {blob_id} is damaged: its content does not match its id. Submit the job again, "
        "and look at who else can write to FANOUT_BLOBS_URL."
    )


def _stamp(stream: IO[bytes]) -> tuple[int, ...]:
    """Return what tells a file from another one, and from itself after a change."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
