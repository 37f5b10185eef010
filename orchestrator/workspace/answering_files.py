"""A remote file system whose calls end in a set time, whatever its driver and its server do.

Drivers wait for their servers for a minute and more, and try again then; some wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoResult
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

import fsspec

Result = TypeVar("Result")

SLOWEST_BYTES_PER_SECOND = 256 * 1024
"""Of an upload, which is one call of a driver: its time limit grows with the file. Below that the
largest workspace would take more than two hours."""


class NoAnswer(Exception):
    """A store did not answer in time; the call goes on in its thread, and its end is ignored."""


class AnsweringFiles:
    """An fsspec file system whose calls have a time limit.

    Every call raises NoAnswer when it takes longer, and else what the file system raises.

    Args:
        files: The file system.
        timeout_seconds: The limit of a call, besides the time that the bytes of an upload take.
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
        """Close the file, which is no call of its server."""
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


def protocols_of(files: Any) -> tuple[str, ...]:
    """Return the URL schemes of an fsspec file system, which has one or several."""
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def in_time(seconds: float, call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Return what a call returns, if it does within a time.

    The thread of a call that does not is left to itself; it keeps no process alive.

    Raises:
        NoAnswer: It does not.
        Exception: Whatever the call raises.
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
            raise  # the call's own
        raise NoAnswer from None
