"""What `create_deep_agent(execution=…)` means: a shell of this machine, or an MCP server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal, TypedDict, get_args

from fanout.orchestrator.deep_agent.backends.composite import CompositeShell, Mount
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend, FilesystemBackend
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend, BackendFactory, Shell
from fanout.orchestrator.deep_agent.backends.state import StateBackend
from fanout.orchestrator.deep_agent.execution.server_process import server_process
from fanout.orchestrator.deep_agent.mcp.server import McpServer
from fanout.orchestrator.deep_agent.mcp.tools import McpTools
from fanout.orchestrator.deep_agent.prompts import OTHER_FILES, OTHER_PATHS

Transport = Literal["sse", "http"]


class ExecutionServer(TypedDict, total=False):
    """An MCP server with tools that execute: either a `command` or a `uri`."""

    command: str
    """A program, started in this process's working directory."""
    args: Sequence[str]
    env: Mapping[str, str]
    """Variables for it, beside those that every program gets; none of this process's may be a key.
    """
    uri: str
    """The address of a running server."""
    transport: Transport
    """With a `uri`: server-sent events, or streamable HTTP; the first when omitted."""
    headers: Mapping[str, str]
    """With a `uri`: sent with every request."""


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
        return _server_at(name, given)
    args = given.get("args", ())
    if isinstance(args, str) or not all(isinstance(each, str) for each in args):
        raise ValueError("An execution server's args is a list of strings.")
    process = partial(server_process, given["command"], tuple(args), dict(given.get("env", {})))
    return McpServer(name=name, open_process=process, prefixed=False)


def _server_at(name: str, given: ExecutionServer) -> McpServer:
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
    """Files with a shell of this machine beside them.

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
