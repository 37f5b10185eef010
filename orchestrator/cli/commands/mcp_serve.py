"""`mcp serve`: the server that an MCP client starts.

It lists its tools at once; the modules for calls are imported with the first call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...extras import Handshake, answer_first_requests
from ..terminal.exit_codes import UsageProblem

WorkspacesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--workspace",
        metavar="DIR",
        help="A folder that the client may give to agents and merge changes into; can be given several "
        "times. Default: the folder in which the client starts the server, unless that is the home "
        "folder or above it.",
    ),
]


def serve(workspace: WorkspacesOption = None) -> None:
    """Serve MCP on stdin and stdout, for the client that starts it.

    It uses the configured Redis, or the services of `fanout up`, and starts no services.
    """
    require_folders(workspace)
    if said := answer_first_requests():
        _serve(said, workspace)


def _serve(said: Handshake, workspace: list[Path] | None) -> None:
    # The SDK needs OpenTelemetry, which is hidden while this module is imported.
    import anyio  # noqa: PLC0415 - see above

    from ...configuration.settings import load_settings  # noqa: PLC0415
    from ...extras import (  # noqa: PLC0415 - see above
        LocalDoor,
        LocalFolders,
        create_server,
        serve_stdio,
        usable_roots,
    )
    from ..terminal.session import open_client  # noqa: PLC0415 - see above
    from ..terminal.waiting import speaking  # noqa: PLC0415 - see above

    roots = usable_roots(workspace or (), Path.cwd(), Path.home())
    door = LocalDoor(
        lambda: open_client(load_settings()),
        lambda client: LocalFolders(client, roots, load_settings().state_dir),
    )
    with speaking():  # stderr is the client's log
        anyio.run(serve_stdio, create_server(door), said)


def require_folders(folders: list[Path] | None) -> None:
    """Refuse folders that do not exist.

    Raises:
        UsageProblem: One does not exist.
    """
    missing = [folder for folder in folders or () if not folder.is_dir()]
    if missing:
        raise UsageProblem(f"--workspace {str(missing[0])!r} is not a folder.")
