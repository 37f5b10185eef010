"""Where an agent's commands and code run, if not on its backend: `create_deep_agent(execution=…)`.

That is a shell of this machine, also as a function `execute` for any ADK agent, or an MCP server,
also as a process of this machine. A worker never starts one: there a server with a command runs in
the job's sandbox.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from ..portable.command_output import BoundedOutput
from .backends import processes
from .backends.composite import CompositeShell, Mount
from .backends.directory import DirectoryBackend, FilesystemBackend
from .backends.local_shell import (
    LocalShellBackend,
    inherited_environment,
)
from .backends.protocol import (
    Backend,
    BackendFactory,
    Execution,
    OutputSink,
    Shell,
)
from .backends.state import StateBackend
from .failures import ToolMistake
from .mcp.server import McpServer, ServerProcess
from .mcp.tools import McpTools
from .prompts import OTHER_FILES, OTHER_PATHS
from .tools.execute import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_OUTPUT_BYTES,
    check_command,
    execution_result,
)

Transport = Literal["sse", "http"]

MAX_ERROR_BYTES = 16_384
"""How much of a server's error output is kept for the text of an error: a long traceback."""

QUOTED_CHARACTERS = 500
"""The end of a server's error output, quoted when it has ended."""

_MAX_SECONDS = 366 * 86_400.0
"""A server runs as long as its session."""

_READ_BYTES = 256 * 1024
"""The size of one read from a server; a socket's buffer is smaller."""


class ExecutionServer(TypedDict, total=False):
    """An MCP server with tools that execute: either a `command` or a `uri`."""

    command: str
    """A program, started in this process's working directory."""
    args: Sequence[str]
    env: Mapping[str, str]
    """Variables for it, besides those that every program gets; none of this process's may be a key.
    """
    uri: str
    """The address of a running server."""
    transport: Transport
    """The transport of a `uri`: server-sent events, or streamable HTTP; the first when omitted."""
    headers: Mapping[str, str]
    """The headers of every request to a `uri`."""


ExecutionChoice = Literal["local", "heimdall"] | ExecutionServer

HEIMDALL = ExecutionServer(command="npx", args=["@heimdall-ai/heimdall"])
"""Python and bash in WebAssembly; it needs Node.js."""

_KEYS = {"command": {"command", "args", "env"}, "uri": {"uri", "transport", "headers"}}


def execution_tools(choice: ExecutionChoice | None) -> list[McpTools]:
    """Return the tools of the chosen server, with the server's own names; none for a shell.

    Raises:
        ValueError: There is no such choice, or a server's keys are wrong.
    """
    if choice is None or choice == "local":
        return []
    if choice == "heimdall":
        return [McpTools([_server("heimdall", HEIMDALL)])]
    if isinstance(choice, Mapping):
        return [McpTools([_server("execution", choice)])]
    raise ValueError(
        f"There is no execution {choice!r}; give 'local', 'heimdall', or a server as "
        "{'command': …, 'args': […]} or {'uri': …}."
    )


def _server(name: str, given: ExecutionServer) -> McpServer:
    kinds = [kind for kind in _KEYS if given.get(kind)]
    if len(kinds) != 1:
        raise ValueError("An execution server has either a command or a uri.")
    unknown = sorted(set(given) - _KEYS[kinds[0]])
    if unknown:
        known = ", ".join(sorted(_KEYS[kinds[0]]))
        raise ValueError(
            f"An execution server with a {kinds[0]} has no {', '.join(unknown)}; it has {known}."
        )
    if kinds[0] == "uri":
        return _open_server(name, given)
    args = given.get("args", ())
    if isinstance(args, str) or not all(isinstance(each, str) for each in args):
        raise ValueError("An execution server's args is a list of strings.")
    process = partial(server_process, given["command"], tuple(args), dict(given.get("env", {})))
    return McpServer(name=name, open_process=process, prefixed=False)


def _open_server(name: str, given: ExecutionServer) -> McpServer:
    transport = given.get("transport", "sse")
    if transport not in get_args(Transport):
        raise ValueError("An execution server's transport is sse or http.")
    headers = given.get("headers", {})
    return McpServer(
        name=name, url=given["uri"], transport=transport, headers=headers, prefixed=False
    )


def with_local_shell(backend: Backend | BackendFactory | None) -> Backend | BackendFactory:
    """Return the same files with a shell of this machine, which is not a sandbox.

    It starts in the backend's directory, or in this process's working directory if the files are
    elsewhere. The files of a FilesystemBackend get their real paths, which are those of the shell,
    so that sub-agents can run commands in copies of them.

    Raises:
        ValueError: The backend has a shell; of what a factory returns, when it is called.
    """
    working_directory = Path.cwd()
    shell_in = cache(LocalShellBackend)

    def shelled(files: Backend) -> Backend:
        if isinstance(files, FilesystemBackend):
            return shell_in(files.root)
        folder = files.root if isinstance(files, DirectoryBackend) else working_directory
        return LocalExecution(files, shell_in(folder))

    if backend is None:
        return lambda state: shelled(StateBackend(state))
    if callable(backend):
        factory = backend
        return lambda state: shelled(factory(state))
    return shelled(backend)


def real_sources(
    sources: Sequence[str] | None, backend: Backend | BackendFactory | None
) -> Sequence[str]:
    """Return the paths of knowledge as they are found when the backend has a local shell.

    Args:
        sources: The paths on the backend.
        backend: The backend without the shell.
    """
    if not isinstance(backend, FilesystemBackend):
        return sources or ()
    return [source.lstrip("/") or "." for source in sources or ()]


class LocalExecution(CompositeShell):
    """Files together with a shell of this machine.

    Args:
        files: The files.
        shell: The shell.

    Raises:
        ValueError: The files have a shell.
    """

    def __init__(self, files: Backend, shell: LocalShellBackend) -> None:
        if isinstance(files, Shell):
            raise ValueError("The backend has a shell of its own: leave execution='local' out.")  # noqa: TRY004 - a combination, not a type
        super().__init__(files, {}, shell=shell)
        folder = shell.output_folder
        self._outputs = Mount(folder, DirectoryBackend(folder, mount=folder))
        text = OTHER_PATHS if isinstance(files, DirectoryBackend) else OTHER_FILES
        self.shell_location = text.format(folder=shell.root, root=files.search_root)
        """Tells a model which files the shell sees."""

    def _owner(self, path: str) -> Mount:
        """Find the whole outputs of commands too, which no listing shows."""
        return self._outputs if self._outputs.owns(path) else super()._owner(path)


@asynccontextmanager
async def server_process(
    command: str, args: Sequence[str], env: Mapping[str, str]
) -> AsyncIterator[ServerProcess]:
    """Run a server in this process's working directory until the context ends.

    Everything that it started ends with it.

    Args:
        command: A program, by its path or its name on PATH.
        args: Its arguments.
        env: Variables besides those that every program gets.

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


def create_local_execute_tool() -> Callable[[str], dict[str, Any]]:
    """Return a plain function that runs a shell command in this process's working directory.

    There is no isolation: a command may do whatever this process's user may do. It gets the few
    variables of the environment that programs need, and none that may be a key.

    A deep agent needs it not: `create_deep_agent(execution="local")` gives it the built-in tool,
    which does not block, shows its output while it runs, and takes a time limit.
    """
    shell_in = cache(LocalShellBackend)  # it keeps the whole outputs of commands

    def execute(command: str) -> dict[str, Any]:
        """Execute a shell command locally and return the output.

        Args:
            command: The shell command to execute.
        """
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, _run(command, shell_in(Path.cwd()))).result()

    return execute


async def _run(command: str, shell: Shell) -> dict[str, Any]:
    try:
        check_command(command)
    except ToolMistake as mistake:
        return {"status": "error", "output": str(mistake), "exit_code": -1, "truncated": False}
    ended = await shell.execute(command, DEFAULT_TIMEOUT_SECONDS, MAX_OUTPUT_BYTES)
    return execution_result(ended, DEFAULT_TIMEOUT_SECONDS)
