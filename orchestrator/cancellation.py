"""Cancellation of asyncio tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 0.2
"""Before Python 3.12 `asyncio.wait_for` loses a cancellation that arrives together with its result,
so the cancellation is repeated."""


def is_cancelled() -> bool:
    """Return whether the running task itself was cancelled, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all of them are done, and discard their results and exceptions.

    Raises:
        asyncio.CancelledError: The caller itself was cancelled; some tasks may still be running.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


_abandoned: set[asyncio.Future[Any]] = set()
"""The tasks that cancel abandoned tasks; the list keeps them, because asyncio holds them only
weakly."""


async def cancel_or_abandon(seconds: float, *tasks: asyncio.Future[Any]) -> bool:
    """Cancel tasks, and wait for their ends for a limited time.

    Those that ignore it are cancelled again and again in the background.

    Args:
        seconds: How long to wait.
        tasks: The tasks; their results and exceptions are discarded.

    Returns:
        Whether all of them are done.
    """
    ending = asyncio.create_task(cancel_and_wait(*tasks))
    _abandoned.add(ending)
    ending.add_done_callback(_abandoned.discard)
    await asyncio.wait([ending], timeout=seconds)
    return ending.done()


async def ended(seconds: float, *tasks: asyncio.Future[Any]) -> bool:
    """Wait for the ends of tasks, also while the caller is being cancelled again and again.

    It is for work that a cancelled caller has to finish before it raises the cancellation again.

    Args:
        seconds: How long to wait.
        tasks: The tasks; they are not cancelled, and their exceptions are not raised.

    Returns:
        Whether all of them are done.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (pending := [task for task in tasks if not task.done()]) and loop.time() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(pending, timeout=until - loop.time())
    return not pending


async def uninterrupted(work: Awaitable[T]) -> T:
    """Wait for work that must be completed; a cancellation is raised once it has ended.

    Raises:
        CancelledError: the caller was cancelled meanwhile.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it
        raise cancelled
    return task.result()
