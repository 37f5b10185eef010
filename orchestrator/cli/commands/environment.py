"""`environment ls`, `build` and `rm`: the prepared environments of this host."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ...client.attachment import attached
from ...client.job_client import JobClient
from ...configuration.settings import Settings, load_settings
from ...embedded.python_process import child_environment, python_argv
from ...jobs.spec import StartFiles
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.options import AsJson
from ..terminal.waiting import waiting

PROGRAM = "fanout.workers.extras.environments"
SHORTEST_KEY = 4
"""The fewest characters of a key that name one."""


def ls(as_json: AsJson = False) -> None:
    """List environments: key, size, last use, agent, repository."""
    _run(_settings(), ["ls", *(["--json"] if as_json else [])], "asking the Docker engine")


def build(
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="The agent whose jobs will use it.")
    ] = "general-purpose",
    workspace: Annotated[
        Path, typer.Option(metavar="DIR", help="The workspace; default: this folder.")
    ] = Path(),
) -> None:
    """Prepare the environment of an agent's jobs in a workspace.

    Jobs do it themselves when they need one; here it is done before. One that exists stays. Prints
    its key.
    """
    settings = _settings()
    start = asyncio.run(_start_files(settings, workspace, agent))
    argv = ["build", "--agent", agent]
    argv += ["--snapshot", start.snapshot] if start.snapshot else []
    argv += [part for layer in start.layers for part in ("--layer", layer)]
    _run(settings, argv, "preparing the environment")


def rm(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="A key as `fanout environment ls` prints it."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that no job uses.")] = False,
) -> None:
    """Remove prepared environments of this host that no job uses."""
    named = keys or []
    if bool(named) == all_:
        raise UsageProblem("Name the environments to remove, or give --all.")
    if short := [key for key in named if len(key) < SHORTEST_KEY or key.startswith("-")]:
        raise UsageProblem(f"{short[0]!r} is no key: give at least {SHORTEST_KEY} characters.")
    _run(_settings(), ["rm", *(["--all"] if all_ else named)], "asking the Docker engine")


def _settings() -> Settings:
    """Return the settings, with the Redis that holds the installation of this host.

    Raises:
        UsageProblem: There are no containers here.
        LedgerUnavailable: No Redis is configured or running.
    """
    settings = load_settings()
    if settings.sandbox.provider == "local":
        raise UsageProblem(
            "Prepared environments need Docker sandboxes: FANOUT_SANDBOX__PROVIDER is local."
        )
    return attached(settings)


async def _start_files(settings: Settings, workspace: Path, agent: str) -> StartFiles:
    client = JobClient.from_settings(settings)
    try:
        return await client.start_files(workspace, agent)
    finally:
        await client.close()


def _run(settings: Settings, argv: Sequence[str], what: str) -> NoReturn:
    command = python_argv(PROGRAM, *argv)
    with waiting(what, in_lines=True):
        ended = subprocess.run(command, env=child_environment(settings), check=False)  # noqa: S603 - our own program
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else ExitCode.WORK_FAILED)
