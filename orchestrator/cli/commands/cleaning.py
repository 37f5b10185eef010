"""`clean`: list and remove what installations that are gone left on the Docker engine."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Annotated, NoReturn

import typer

from fanout.orchestrator.cli.checks.leftovers import own_installation
from fanout.orchestrator.cli.commands.setup.images import ASKING_THE_ENGINE
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import ExitCode
from fanout.orchestrator.cli.terminal.live.waiting import waiting
from fanout.orchestrator.cli.terminal.options import AsJson
from fanout.orchestrator.cli.terminal.session import WAITING_FOR_REDIS
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.embedded.python_process import helper_environment, python_argv


def clean(
    installation: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="The installation whose Redis no longer exists; default: list all."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also what looks as if it were in use.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what a lost installation left on the Docker engine.

    Without an argument it lists what is there. Workers remove what their own installation leaves.
    When its Redis is lost, nobody does.
    """
    settings = load_settings()
    with waiting(WAITING_FOR_REDIS):
        own = asyncio.run(own_installation(settings))
    if installation is None:
        output.notice(f"This Redis holds the ledger of installation {own or 'none'}.")
        _run(["ls", *(["--json"] if as_json else [])])
    if installation == own and not force:
        raise typer.BadParameter(
            f"{installation} is the installation of this Redis: its workers remove what they leave."
        )
    _run(["rm", installation, *(["--force"] if force else [])])


def _run(argv: list[str]) -> NoReturn:
    command = python_argv("fanout.workers.sandbox.docker.installations", *argv)
    with waiting(ASKING_THE_ENGINE, in_lines=True):
        ended = subprocess.run(command, env=helper_environment(), check=False)  # noqa: S603 - our own program
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else ExitCode.WORK_FAILED)
