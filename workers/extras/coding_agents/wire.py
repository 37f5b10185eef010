"""The messages of a coding agent: JSON-RPC, one a line, on the input and output of its process.

All that it writes is data of a stranger. Answers to our requests go to the library; its updates and
its questions wait in a queue of bounded length, so that an agent which writes faster than they are
used has to wait.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.valid_text import clean

from ...sandbox import Process, ProcessEnded

MAX_LINE_BYTES = 16 << 20
"""The longest message: a tool's result with several large files."""
MAX_NOISE_BYTES = 1 << 20
"""What may be on its output besides messages, in all: some programs print a banner."""
LARGE_BYTES = 256 << 10
"""A larger message is parsed in a thread: it would hold up all other agents."""
QUEUED = 256
"""The updates that may wait; the process waits meanwhile."""
MAX_DEPTH = 100
"""The deepest nesting of lists and objects in a message."""
ERROR_CHARACTERS = 300
"""How much of an error's text is kept."""
NOT_OFFERED = -32601
"""JSON-RPC's code for a method that does not exist."""


@dataclass(frozen=True)
class Incoming:
    """What the agent sends by itself."""

    kind: Literal["update", "permission"]
    params: dict[str, Any]
    id: int | str | None = None
    """The id of a question, for its answer."""


class Wire:
    """The transport of one connection; see `acp`'s `Transport`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._noise_bytes = 0
        self._sending = asyncio.Lock()
        self.received: asyncio.Queue[Incoming] = asyncio.Queue(QUEUED)
        """The updates and questions, in order."""
        self.ended: ProcessEnded | SandboxFailure | None = None
        """Why nothing more can come, once nothing can."""
        self.fault = ""
        """What is wrong with what it wrote, as the end of a sentence; empty for nothing."""

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message.

        Raises:
            ConnectionError: The process has ended.
        """
        line = json.dumps(clean(message), separators=(",", ":")).encode() + b"\n"
        try:
            async with self._sending:
                await self._process.send(line)
        except (ProcessEnded, SandboxFailure) as error:
            self.ended = error
            raise ConnectionError("the process has ended") from None

    async def receive(self) -> dict[str, Any] | None:
        """Return the next answer to one of our requests; None at the end."""
        while (line := await self._line()) is not None:
            message = await self._parsed(line)
            if message is None:
                self._noise_bytes += len(line) + 1
                if self._noise_bytes > MAX_NOISE_BYTES:
                    self.fault = "it writes what is not ACP to its standard output"
                    return None
            elif "method" not in message:
                return message
            else:
                await self._take(message)
        return None

    async def close(self) -> None:
        """The process is ended by whoever has started it."""

    async def _line(self) -> bytes | None:
        """Return the next line; None at the end, or for one that is too long."""
        while not self._lines:
            try:
                data = await self._process.receive()
            except (ProcessEnded, SandboxFailure) as error:
                self.ended = error
                return None
            first, *others = data.split(b"\n")
            self._rest += first
            if others:
                self._lines.append(bytes(self._rest))
                self._lines.extend(others[:-1])
                self._rest = bytearray(others[-1])
            if len(self._rest) > MAX_LINE_BYTES:
                self.fault = f"it wrote a message of more than {MAX_LINE_BYTES >> 20} MiB"
                return None
            await asyncio.sleep(0)  # a flood must not hold up the other agents
        return self._lines.popleft()

    async def _parsed(self, line: bytes) -> dict[str, Any] | None:
        """Return the message in a line; None for something else."""
        if len(line) > LARGE_BYTES:
            return await asyncio.to_thread(_parse, line)
        return _parse(line)

    async def _take(self, message: dict[str, Any]) -> None:
        """Queue an update or a question, and answer any other request."""
        method, number = message["method"], message.get("id")
        params = message.get("params")
        if method == "session/update" and isinstance(params, dict):
            await self.received.put(Incoming("update", params))
        elif method == "session/request_permission" and isinstance(params, dict):
            await self.received.put(Incoming("permission", params, number))
        elif number is not None:
            error = {"code": NOT_OFFERED, "message": "Method not found"}
            await self.send({"jsonrpc": "2.0", "id": number, "error": error})

    async def answer(self, number: int | str | None, result: dict[str, Any]) -> None:
        """Answer a question of the agent.

        Raises:
            ConnectionError: The process has ended.
        """
        if number is not None:
            await self.send({"jsonrpc": "2.0", "id": number, "result": result})


def _parse(line: bytes) -> dict[str, Any] | None:
    text = line.strip()
    if not text:
        return {"method": "", "id": None}
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or _depth(value) > MAX_DEPTH:
        return None
    message: dict[str, Any] = clean(value)
    number = message.get("id")
    if isinstance(number, bool) or not isinstance(number, (int, str, type(None))):
        return None
    if "method" in message:
        return message if isinstance(message["method"], str) else None
    return _answer(message) if isinstance(number, int) else None


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer in a form that the library can read."""
    if "error" not in message:
        return message
    error = message["error"] if isinstance(message["error"], dict) else {}
    code, data = error.get("code"), error.get("data")
    kept = {
        "code": code if isinstance(code, int) else -32603,
        "message": str(error.get("message", "an error without a text"))[:ERROR_CHARACTERS],
        "data": data if isinstance(data, dict) else None,
    }
    return {"jsonrpc": "2.0", "id": message["id"], "error": kept}


def _depth(value: Any) -> int:
    """Return how deep lists and objects are nested, up to a little more than the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return depth
