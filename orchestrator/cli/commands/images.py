"""`images build`, `ls` and `check`, the offer to build missing images, and `clean`.

`clean` lists and removes remains of lost installations on the Docker engine.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn, TypeVar

import typer

from ...configuration.settings import Settings, load_settings
from ...embedded.python_process import helper_environment, python_argv
from ...embedded.sandbox_check import (
    ImagesMissing,
    in_local_sandbox,
    require_sandbox,
    sandbox_of_demo,
)
from ..terminal import output
from ..terminal.exit_codes import ExitCode
from ..terminal.options import AsJson
from ..terminal.questions import Choice, choose, may_ask
from ..terminal.waiting import speaking, waiting

T = TypeVar("T")

ASKING_THE_ENGINE = "waiting for the Docker engine"

PROGRAM = "fanout.workers.extras.images"
_OF_REGISTRIES = re.compile(
    r"(https?|no|all)_proxy|(PIP|UV|NPM_CONFIG)_\w+|(NODE_EXTRA_CA|SSL)_CERT\w*|REQUESTS_CA_BUNDLE",
    re.IGNORECASE,
)
"""The variables with which people configure how packages are fetched, for building images; they may
contain a password, and no other child gets them."""

BUILD = Choice("build", "build them now (about 3 minutes)")
LOCAL = Choice("local", "run the demo's own commands as you, without isolation")
STOP = Choice("stop", "start nothing")


def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="base or python; default: both. Or a coding agent: opencode, gemini-cli, codex, "
            "claude-code.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="The Debian or Ubuntu image to build on; default: debian:bookworm-slim, from the "
            "engine or a registry.",
        ),
    ] = None,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            help="Make the base from Debian packages with mmdebstrap, without asking a registry.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also build images that are up to date.")
    ] = False,
) -> None:
    """Build the sandbox images that are missing or out of date.

    It first prints about how long that takes (3 minutes for all), and does nothing if they are up
    to date. If no registry answers, the base is made from Debian packages if mmdebstrap is
    installed. Prints the names of the images.
    """
    argv = ["build", *(names or ())]
    if base is not None:
        argv += ["--base", base]
    argv += ["--bootstrap"] if bootstrap else []
    argv += ["--force"] if force else []
    raise typer.Exit(run_program(argv))


def ls(as_json: AsJson = False) -> None:
    """List the sandbox images and whether the Docker engine has them."""
    raise typer.Exit(run_program(["ls", *(["--json"] if as_json else [])]))


def check(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="An image on the Docker engine, from any source.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check whether jobs can run in an image, and print what it lacks.

    A container of it is started, without a network, and inspected: Python 3.8 or newer with its
    standard library, /bin/sh, bash, git, a name for the user. Exit code 1 if something is missing
    that jobs need.
    """
    raise typer.Exit(run_program(["check", image, *(["--json"] if as_json else [])]))


def run_program(argv: Sequence[str], *, quiet: bool = False) -> int:
    """Run the program that knows the engine, with this terminal; return its exit code.

    Args:
        argv: Its arguments.
        quiet: Whether its result is not a result of this command; its progress is still shown.
    """
    env = helper_environment() | {
        name: value for name, value in os.environ.items() if _OF_REGISTRIES.fullmatch(name)
    }
    command = python_argv(PROGRAM, *argv)
    out = subprocess.DEVNULL if quiet else None
    says_itself = argv[0] == "build" and output.stderr_is_terminal()  # it moves a line
    wait = waiting(f"waiting for the Docker engine: {argv[0]}", in_lines=True)
    with speaking() if says_itself else wait:
        ended = subprocess.run(command, env=env, stdout=out, check=False)  # noqa: S603 - our own program
    return ended.returncode if ended.returncode >= 0 else ExitCode.WORK_FAILED


def check_sandbox(settings: Settings) -> None:
    """Check that commands of jobs could be isolated as the settings say.

    Raises:
        NoSandbox: They could not.
    """
    with waiting(ASKING_THE_ENGINE):
        asyncio.run(require_sandbox(settings))


def with_images(start: Callable[[], T]) -> T:
    """Return what `start` returns; if images are missing, a person may build them first.

    Without a terminal nobody is asked: the failure names the command.

    Raises:
        ImagesMissing: Images are missing, and nobody can be asked.
        typer.Exit: The person stops, or the images could not be built.
    """
    try:
        return start()
    except ImagesMissing:
        if not may_ask():
            raise
    offer_images([STOP])
    return start()


def sandbox_of_the_demo(settings: Settings) -> Settings:
    """Return the settings of the demo: with local sandboxes if no engine is ready.

    Raises:
        NoSandbox: No engine is ready, and a setting asks for one.
        typer.Exit: The person stops, or the images could not be built.
    """
    try:
        with waiting(ASKING_THE_ENGINE):
            return asyncio.run(sandbox_of_demo(settings, output.notice, may_build=may_ask()))
    except ImagesMissing:
        if not may_ask():
            raise
    is_free = "provider" not in settings.sandbox.model_fields_set
    answer = offer_images([LOCAL, STOP] if is_free else [STOP])
    return in_local_sandbox(settings) if answer == LOCAL.name else settings


def offer_images(others: Sequence[Choice]) -> str:
    """Ask a person whether to build the images, do it if they agree, and return the answer.

    Args:
        others: The other answers.

    Raises:
        typer.Exit: The person stops, or the images could not be built.
    """
    question = "The Docker engine answers, but the images of sandboxes are not built yet."
    answer = choose(question, [BUILD, *others])
    if answer == BUILD.name and (code := run_program(["build"], quiet=True)):
        raise typer.Exit(code)
    if answer == STOP.name:
        output.notice("Nothing was started. To build them later: fanout images build")
        raise typer.Exit(ExitCode.UNREACHABLE)
    return answer


def clean(
    installation: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="The installation whose Redis no longer exists; default: list all."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove what seems to be in use.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what a lost installation left on the Docker engine.

    Without an argument it lists what is there. Workers remove what their own installation leaves.
    When its Redis is lost, nobody does.
    """
    from ..checks.doctor_checks import own_installation  # noqa: PLC0415 - seldom

    settings = load_settings()
    with waiting("waiting for Redis"):
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
