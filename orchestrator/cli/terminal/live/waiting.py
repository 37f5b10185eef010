"""What a command waits for before there is anything else to show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.status import Status

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.cli.terminal import formatting, output

SILENT_SECONDS = 2.0
"""A person wonders after about so long."""
FIRST_LINE_SECONDS = 10.0
"""Where no terminal is: the first line; each later one after twice as long."""


@asynccontextmanager
async def waiting(what: str) -> AsyncIterator[None]:
    """Say what is waited for while the context is open, and for how long, if it takes long.

    Args:
        what: In a few words, such as `starting the worker`.
    """
    task = asyncio.create_task(_say(what, time.monotonic()))
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def _say(what: str, begun: float) -> None:
    def line() -> str:
        return f"{what}, {formatting.span(time.monotonic() - begun)}"

    if not output.stderr_is_terminal():
        pause = FIRST_LINE_SECONDS
        while True:
            await asyncio.sleep(pause)
            output.notice(f"Still {line()}")
            pause *= 2
    await asyncio.sleep(SILENT_SECONDS)
    with Status(line(), console=Console(stderr=True)) as status:
        while True:
            await asyncio.sleep(0.5)
            status.update(line())
