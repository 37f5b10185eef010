"""How tests wait, and the lines of a command's stderr that say what it waits for."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable
from typing import Any

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.jobs.store.ledger import Ledger, Reaped

WAIT = re.compile(r"Still \S.*\n?")
"""A whole line, as `waiting` and the live view print it in a pipe; a busy machine has more."""
WITHIN_SECONDS = 60.0
"""How long a busy machine may take to do what a test waits for."""
LOOK_SECONDS = 0.02
"""Between two looks at what has no event."""


def without_waits(stderr: str) -> str:
    """Return a command's stderr without these lines."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not WAIT.fullmatch(line))


async def eventually(
    look: Callable[[], Any],
    holds: Callable[[Any], object] = bool,
    seconds: float = WITHIN_SECONDS,
) -> Any:
    """Look until what is seen is as it should be, and return it.

    Args:
        look: What to look at; it may be asynchronous.
        holds: Whether what was seen is as it should be.
        seconds: How long to look at the most.
    """
    seen = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                seen = look()
                if inspect.isawaitable(seen):
                    seen = await seen
                if holds(seen):
                    return seen
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise AssertionError(f"It did not come in {seconds} seconds; last seen: {seen!r}") from None


def eventually_in_thread(
    look: Callable[[], Any],
    holds: Callable[[Any], object] = bool,
    seconds: float = WITHIN_SECONDS,
) -> Any:
    """Do the same where there is no event loop."""
    deadline = time.monotonic() + seconds
    while not holds(seen := look()):
        assert time.monotonic() < deadline, f"It did not come; last seen: {seen!r}"
        time.sleep(LOOK_SECONDS)
    return seen


async def until_reaped(ledger: Ledger) -> Reaped:
    """Reap until a job is reaped, and return what was done then."""
    return await eventually(ledger.reap, lambda reaped: reaped.states)


async def until_event(
    client: JobClient,
    job_id: str,
    wanted: EventType | Callable[[JournalEvent], object],
    count: int = 1,
) -> JournalEvent:
    """Follow a job until so many wanted events have come, and return the last of them.

    Args:
        client: Reads the job's journal.
        job_id: The job.
        wanted: A kind of event, or whether one is wanted.
        count: How many.
    """
    async with asyncio.timeout(WITHIN_SECONDS):
        async for event in client.events(job_id):
            count -= bool(event.type is wanted if isinstance(wanted, EventType) else wanted(event))
            if count == 0:
                return event
    raise AssertionError("The journal ended before that.")
