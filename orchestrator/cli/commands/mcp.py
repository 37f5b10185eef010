"""`mcp install`: coding agents that speak MCP use fanout."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from ...configuration.api_settings import is_loopback
from ...configuration.configuration_file import VARIABLE
from ...extras import (
    CLIENTS,
    InstallScope,
    LocalServer,
    McpClient,
    NotMergeable,
    PlacedEntry,
    RemoteServer,
)
from ...spelling import did_you_mean
from ..terminal import output
from ..terminal.exit_codes import ExitCode, UsageProblem
from .mcp_serve import (
    WorkspacesOption,
    require_folders,
)

SERVE = ("mcp", "serve")
PATH = "/mcp"
KEY_VARIABLE = "FANOUT_KEY"
"""The usual variable of the environment with a key of the service; no setting."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def install(
    client: Annotated[
        str, typer.Option(metavar="CLIENT", help=f"The program: {', '.join(CLIENTS)}.")
    ],
    *,
    scope: Annotated[
        InstallScope,
        typer.Option(help="user: for all your projects; project: for the project in this folder."),
    ] = InstallScope.USER,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address of a `fanout serve`, which the client calls; without it the client starts "
            "`fanout mcp serve` on this machine.",
        ),
    ] = None,
    key_variable: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="With --url: the variable of the environment with the key."
        ),
    ] = KEY_VARIABLE,
    workspace: WorkspacesOption = None,
    name: Annotated[str, typer.Option(help="The name of the server in the client.")] = "fanout",
    only_print: Annotated[
        bool, typer.Option("--print", help="Print what the file needs, and change nothing.")
    ] = False,
) -> None:
    """Write the configuration of an MCP client.

    Everything else in the client's file stays unchanged. A key is never written, only the name of
    the variable that holds it.
    """
    chosen = _client(client)
    if not _NAME.fullmatch(name):
        raise UsageProblem(f"--name {name!r} may have letters, digits, '-' and '_' only.")
    if scope not in chosen.files:
        raise UsageProblem(f"{chosen.title} has no file for a {scope}: leave --scope out.")
    service = None if url is None else _service(chosen, url, key_variable, workspace)
    inputs = [] if service is None else chosen.inputs(service)
    entry = chosen.entry(service or _command(chosen, scope, workspace))
    placed = PlacedEntry(chosen.files[scope](), chosen.section, name, entry, inputs)
    if only_print:
        output.payload(placed.merged().rstrip("\n"))
        return
    _write(placed)
    output.payload(str(placed.path))
    _say_next(chosen, service, has_inputs=bool(inputs))


def _write(placed: PlacedEntry) -> None:
    try:
        placed.write()
    except NotMergeable as reason:
        output.notice(f"{placed.path} is unchanged, because {reason}. Add this to it:")
        output.payload(placed.merged().rstrip("\n"))
        raise typer.Exit(ExitCode.WORK_FAILED) from None


def _client(name: str) -> McpClient:
    found = CLIENTS.get(name)
    if found is None:
        raise UsageProblem(
            f"There is no client {name!r}.{did_you_mean(name, CLIENTS)} Known are "
            f"{', '.join(CLIENTS)}; --print of one of them shows what others need."
        )
    return found


def _service(
    client: McpClient, url: str, variable: str, workspace: list[Path] | None
) -> RemoteServer:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UsageProblem(f"--url {url!r} is not like https://fanout.example.com.")
    if workspace:
        raise UsageProblem("--workspace is for a server on this machine: leave it or --url out.")
    if not _VARIABLE.fullmatch(variable):
        raise UsageProblem(f"--key-variable {variable!r} is not the name of a variable.")
    if client.remote is None:
        raise UsageProblem(
            f"The file of {client.title} has no servers by URL: add a connector in its settings."
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        output.notice("The key goes over the network unencrypted: use https.")
    path = parts.path.rstrip("/")
    return RemoteServer(f"{parts.scheme}://{parts.netloc}{path or PATH}", variable)


def _command(client: McpClient, scope: InstallScope, workspace: list[Path] | None) -> LocalServer:
    """Return the command with which the client starts the server."""
    require_folders(workspace)
    folders = [str(folder.resolve()) for folder in workspace or ()]
    if not folders and not client.starts_in_project:
        raise UsageProblem(
            f"{client.title} knows no project: name its folder with --workspace DIR."
        )
    if not folders and client.project_variable:
        folders = [client.project_variable]
    arguments = [*SERVE, *(part for folder in folders for part in ("--workspace", folder))]
    if scope is InstallScope.PROJECT:
        return LocalServer("fanout", tuple(arguments))  # found on each person's own PATH
    if VARIABLE in os.environ:
        arguments = ["--config", os.environ[VARIABLE], *arguments]
    program = Path(sys.argv[0])  # this installation's, which need not be the first on the PATH
    if program.name == "fanout" and program.is_file():
        return LocalServer(str(program.absolute()), tuple(arguments))
    return LocalServer(sys.executable, ("-m", "fanout", *arguments))


def _say_next(client: McpClient, service: RemoteServer | None, *, has_inputs: bool) -> None:
    if service is not None and not has_inputs:
        output.notice(
            f"Put a key (fanout keys create) into {service.key_variable}, where {client.title} "
            f"finds it, and restart {client.title}."
        )
        return
    output.notice(f"Restart {client.title}. Documentation: {client.documentation}")
    unsaved = sorted(set(os.environ) & {"FANOUT_REDIS_URL", "FANOUT_STATE_DIR", "FANOUT_BLOBS_URL"})
    if service is None and unsaved:
        output.notice(
            f"{', '.join(unsaved)} of this shell may be unset there: write it into the "
            "configuration file (fanout config)."
        )
