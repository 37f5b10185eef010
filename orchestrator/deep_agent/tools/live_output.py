"""Live output of commands, as ADK's partial events: for people only, and never stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from google.adk.events import Event
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from fanout.orchestrator.deep_agent.adk.private_names import StreamingMode
from fanout.orchestrator.deep_agent.backends.bounded_output import BoundedOutput
from fanout.orchestrator.deep_agent.backends.protocol import OutputSink
from fanout.orchestrator.deep_agent.progress_tool import emit_events

LIVE_OUTPUT_SECONDS = 1.0
"""Between two events: a person reads no faster, and every front end handles each event. A shorter
command shows nothing and costs nothing."""

MAX_LIVE_LINES = 3
"""Enough to see what a command is doing; the whole output is its result."""

MAX_LIVE_BYTES = 600
"""Three lines of a wide terminal: output without line ends must not make an event large."""

STREAM = "stream"
"""The key in an event's `custom_metadata` whose value `output` marks a command's output."""

Result = TypeVar("Result")


def text_mode(*, streamed: bool) -> StreamingMode:
    """Return ADK's streaming mode for replies in pieces, or as a whole."""
    return StreamingMode.SSE if streamed else StreamingMode.NONE


async def shown_live(
    work: Callable[[OutputSink], Awaitable[Result]], tool_context: ToolContext, tool: str
) -> Result:
    """Do the work of a tool's call, and emit the newest lines of what it writes to the sink.

    If the call is cancelled, the work is cancelled and awaited.
    """
    tail = _Tail()
    task = asyncio.ensure_future(work(tail.take))
    try:
        await asyncio.wait({task}, timeout=LIVE_OUTPUT_SECONDS)
        if not task.done():
            await emit_events(partial(_events, task, tail), tool_context, tool)
        return await task
    finally:
        if not task.done():
            task.cancel()  # once: a second one would interrupt the shell while it kills processes
            await asyncio.wait({task})


class _Tail:
    """The last bytes of an output."""

    def __init__(self) -> None:
        self._output = BoundedOutput(tail_bytes=MAX_LIVE_BYTES)
        self._is_new = False

    async def take(self, data: bytes) -> None:
        self._output.add(data)
        self._is_new = True

    def newest(self) -> str:
        """Return the last lines if there is new output; of a progress bar, only its last state."""
        if not self._is_new:
            return ""
        self._is_new = False
        lines = self._output.content().decode(errors="replace").split("\n")
        shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        return "\n".join([line for line in shown if line.strip()][-MAX_LIVE_LINES:])


async def _events(task: asyncio.Future[Any], tail: _Tail) -> AsyncGenerator[Event, None]:
    while not task.done():
        if lines := tail.newest():
            yield Event(
                partial=True,
                custom_metadata={STREAM: "output"},
                content=types.Content(role="model", parts=[types.Part(text=lines + "\n")]),
            )
        await asyncio.wait({task}, timeout=LIVE_OUTPUT_SECONDS)
