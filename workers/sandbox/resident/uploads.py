"""Contents that are too large for one request: they are sent in parts into a temporary file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.workers.sandbox.inside import frames
from fanout.workers.sandbox.resident.client import ResidentClient

_WINDOW = 3
"""Parts without an answer: the next ones are on their way while one is written."""

_READ_BYTES = 4 * 1024**2
"""Read at once: large enough to be quick, small beside a process."""

_names = itertools.count(1)


async def upload(
    client: ResidentClient,
    source: bytes | AsyncIterable[bytes],
    directory: str,
    begun: asyncio.Future[str] | None = None,
) -> str:
    """Send a large content into a temporary file.

    Args:
        client: the client of the resident.
        source: the content.
        directory: the file's folder.
        begun: gets the returned name as soon as the file exists.

    Returns:
        The argument `upload` for the operation that uses it.

    Raises:
        OSError: the file cannot be written.
        SandboxFailure: see `ResidentClient.request`.
    """
    name = f"{next(_names)}"
    arguments: dict[str, Any] = {"id": name, "directory": directory}
    sent: deque[asyncio.Task[Any]] = deque()
    try:
        async for chunk in _chunks(source):
            sent.append(asyncio.create_task(client.request("upload", arguments, chunk)))
            if "directory" in arguments:
                await sent.popleft()
                arguments = {"id": name}
                if begun is not None:
                    begun.set_result(name)
            elif len(sent) >= _WINDOW:
                await sent.popleft()
        while sent:
            await sent.popleft()
    except BaseException:
        await cancel_and_wait(*sent)
        with contextlib.suppress(Exception):
            await client.request("upload", {"id": name, "abort": True}, timeout_seconds=1.0)
        raise
    return name


async def use_while_sent(
    client: ResidentClient,
    file: Path,
    directory: str,
    use: Callable[[str, int], Awaitable[object]],
) -> None:
    """Send a file that an operation uses while it arrives.

    Args:
        client: the client of the resident.
        file: the file, which is not empty.
        directory: the folder of the temporary file.
        use: asks for the operation; gets its argument `upload`, and the file's size in bytes.

    Raises:
        OSError: the file cannot be read, or not be written there.
        SandboxFailure: see `ResidentClient.request`.
        OperationFailed: the operation was rejected or failed.
    """
    size = (await asyncio.to_thread(file.stat)).st_size
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    sending = asyncio.create_task(upload(client, _parts(file, size), directory, begun))
    try:
        await asyncio.wait([sending, begun], return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            await use(begun.result(), size)
        await sending
    except Exception:
        if sending.done():
            await sending  # why the file was not sent to its end
        raise
    finally:
        await cancel_and_wait(sending)


async def _parts(path: Path, size: int) -> AsyncIterator[bytes]:
    """Yield a file's content in parts, read in a thread.

    Raises:
        OSError: it cannot be read, or has another size.
    """
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while part := await asyncio.to_thread(file.read, _READ_BYTES):
            size -= len(part)
            yield part
        if size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    finally:
        await asyncio.to_thread(file.close)


async def _chunks(source: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a content in parts of at most `frames.CHUNK_BYTES`."""
    if isinstance(source, bytes):
        for at in range(0, len(source), frames.CHUNK_BYTES):
            yield source[at : at + frames.CHUNK_BYTES]
    else:
        async for part in source:
            for at in range(0, len(part), frames.CHUNK_BYTES):
                yield part[at : at + frames.CHUNK_BYTES]
