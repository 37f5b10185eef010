"""`adk`: ADK's own command line on our coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.client.state_folder import write_private
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.embedded.python_process import become, program_environment, python_argv
from fanout.orchestrator.private_files import make_private_folder

APP_COMMANDS = ("web", "run", "api_server")
"""ADK's commands that take the folder of an agent first, and run it."""

AGENT_MODULE = '''"""Written by `fanout adk`: where ADK's commands find fanout's coordinator."""

from fanout.orchestrator.agent import app

__all__ = ["app"]
'''


def adk(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="web|run|api_server [ARGUMENT]…", help="As of the command `adk`."),
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print the agent's folder, for calling `adk` yourself.")
    ] = False,
) -> None:
    """Run ADK's own tools on the coordinator.

    They are its web page, a conversation here, and its API server. What follows the command's name
    is passed on to ADK: fanout adk web --port 8001

    The workspace is FANOUT_WORKSPACE, else this folder. ADK keeps its sessions beside the agent's
    folder, which is in the state folder.
    """
    given = arguments or []
    if not path and (not given or given[0] not in APP_COMMANDS):
        raise UsageProblem(
            f"Give one of ADK's commands: {', '.join(APP_COMMANDS)}; or --path, which prints the "
            "folder for ADK's other commands."
        )
    folder = _agent_folder(load_settings().state_dir)
    if path:
        output.payload(str(folder))
        return
    command, *rest = given
    argv = python_argv("google.adk.cli", command, str(folder), *rest)
    become(argv, program_environment())


def _agent_folder(state_dir: Path) -> Path:
    """Write the folder that ADK takes for an agent's, and return it.

    It is not the installed package: ADK keeps sessions in an agent's folder, and puts the folder
    above it in front of the path.
    """
    folder = state_dir.absolute() / "adk" / "orchestrator"
    make_private_folder(folder)
    write_private(folder / "agent.py", AGENT_MODULE)
    return folder
