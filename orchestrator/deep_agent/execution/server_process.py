"""An MCP server as a process of this machine, for an agent in a person's own process.

A worker never does this: there a server with a command runs in the job's sandbox.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from fanout.orchestrator.deep_agent.backends import processes
from fanout.orchestrator.deep_agent.backends.bounded_output import BoundedOutput
from fanout.orchestrator.deep_agent.backends.local_shell import inherited_environment
from fanout.orchestrator.deep_agent.backends.protocol import Execution, OutputSink
from fanout.orchestrator.deep_agent.mcp.server import ServerProcess

MAX_ERROR_BYTES = 16_384
"""How much of a server's error output is kept for the text of an error: a long traceback."""

QUOTED_CHARACTERS = 500
"""The end of a server's error output, quoted when it has ended."""

_MAX_SECONDS = 366 * 86_400.0
"""A server runs as long as its session."""

_READ_BYTES = 256 * 1024
"""The size of one read from a server; a socket's buffer is smaller."""


@asynccontextmanager
async def server_process(
    command: str, args: Sequence[str], env: Mapping[str, str]
) -> AsyncIterator[ServerProcess]:
    """Run a server in this process's working directory until the context ends.

    Everything that it started ends with it.

    Args:
        command: A program, by its path or its name on PATH.
        args: Its arguments.
        env: Variables beside those that every program gets.

    Raises:
        EOFError: There is no such program.
    """
    environment = {**inherited_environment(), **env}
    program = await asyncio.to_thread(shutil.which, command, path=environment["PATH"])
    if program is None:
        raise EOFError(f"there is no program {command} on PATH; install it first")
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    launch = processes.Launch(
        argv=[program, *args],
        env=environment,
        timeout_seconds=_MAX_SECONDS,
        max_output_bytes=MAX_ERROR_BYTES,
        cwd=".",
        link=theirs,
    )
    errors = BoundedOutput.halves(MAX_ERROR_BYTES)
    running = asyncio.create_task(processes.run(launch, _collector(errors)))
    try:
        yield _ServerProcess(reader, writer, errors, running)
    finally:
        running.cancel()  # it ends all processes
        await asyncio.wait({running})
        writer.close()
        theirs.close()  # already closed, unless the process was never started


class _ServerProcess:
    """A running server."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        errors: BoundedOutput,
        running: asyncio.Task[Execution],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._errors, self._running = errors, running

    async def send(self, data: bytes) -> None:
        """See `ServerProcess.send`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            raise await self._end() from None

    async def receive(self) -> bytes:
        """See `ServerProcess.receive`."""
        data = b""
        with suppress(ConnectionError):  # it ended with unread input
            data = await self._reader.read(_READ_BYTES)
        if not data:
            raise await self._end()
        return data

    @property
    def error_output(self) -> bytes:
        """See `ServerProcess.error_output`."""
        return self._errors.content()

    async def _end(self) -> EOFError:
        """Wait for the end and return why."""
        ended = await asyncio.shield(self._running)
        errors = ended.output.decode(errors="replace").strip()
        quoted = f": {errors[-QUOTED_CHARACTERS:]}" if errors else ""
        return EOFError(f"it ended with exit code {ended.exit_code}{quoted}")


def _collector(errors: BoundedOutput) -> OutputSink:
    async def collect(part: bytes) -> None:
        errors.add(part)

    return collect
