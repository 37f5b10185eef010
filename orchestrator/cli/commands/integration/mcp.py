"""`mcp serve`: coding agents that speak MCP use fanout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.cli.terminal.session import open_client
from fanout.orchestrator.configuration.settings import load_settings

WorkspacesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--workspace",
        metavar="DIR",
        help="A folder that the client may hand to agents and merge changes into; can be given "
        "several times. Default: the current one, unless it is the home folder or above it.",
    ),
]


def serve(workspace: WorkspacesOption = None) -> None:
    """Serve MCP on stdin and stdout: an MCP client starts this command (see `fanout mcp install`).

    It uses the configured Redis, or what `fanout up` has started, and starts nothing by itself.
    """
    # Imported here: `lazy_commands` hides OpenTelemetry, which the SDK needs, while it imports.
    from fanout.orchestrator.server.mcp.doors import LocalDoor  # noqa: PLC0415 - see above
    from fanout.orchestrator.server.mcp.folders import LocalFolders, usable_roots  # noqa: PLC0415
    from fanout.orchestrator.server.mcp.server import create_server  # noqa: PLC0415 - see above

    missing = [folder for folder in workspace or () if not folder.is_dir()]
    if missing:
        raise UsageProblem(f"--workspace {str(missing[0])!r} is not a folder.")
    settings = load_settings()
    roots = usable_roots(workspace or (), Path.cwd(), Path.home())
    door = LocalDoor(
        lambda: open_client(settings),
        lambda client: LocalFolders(client, roots, settings.state_dir),
    )
    create_server(door).run("stdio")
