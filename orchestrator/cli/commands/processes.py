"""`worker` and `flower`: run an installation's processes in the foreground."""

from __future__ import annotations

import os
import secrets
from importlib.util import find_spec
from typing import Annotated

import typer

from fanout.orchestrator.cli.commands.setup.images import check_sandbox, with_images
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.cli.terminal.options import SandboxOption, chosen_sandbox
from fanout.orchestrator.client.attachment import attached
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.embedded.python_process import (
    become,
    child_environment,
    helper_environment,
    python_argv,
)

NO_FLOWER = "Flower is not installed: pip install 'fanout-orchestrator[flower]'"
FLOWER_USER = "fanout"
FLOWER_PREFIXES = ("FANOUT_", "FLOWER_")
MAX_PORT = 65_535
"""Of TCP."""
FIXED = {"FLOWER_ADDRESS", "FLOWER_READ_ONLY"}
"""Flower's own variables that would open it to other machines, or to changes."""
"""Of the variables that Flower gets: no keys of models."""

EnvOption = Annotated[
    bool,
    typer.Option("--env", help="Print the variables by which other programs find them."),
]


def worker(
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Jobs at once of this worker; default: FANOUT_WORKER__CONCURRENCY."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that share these jobs; 0: as many as pay on this machine's cores.",
        ),
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="MAX,MIN",
            help="Change the number of jobs at once with the load, between these.",
        ),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="The Celery queues to serve; default: FANOUT_WORKER__QUEUE."
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option(help="On SIGTERM finish the running jobs instead of requeueing them.")
    ] = False,
    sandbox: SandboxOption = None,
) -> None:
    """Run a worker in the foreground until SIGTERM or Ctrl-C."""
    settings = attached(load_settings(**chosen_sandbox(sandbox)))
    with_images(lambda: check_sandbox(settings))
    argv = python_argv("fanout.workers")
    if processes is not None:
        argv += ["--processes", str(processes)]
    if concurrency is not None:
        argv += ["--concurrency", str(concurrency)]
    if autoscale is not None:
        argv += ["--autoscale", autoscale]
    if queues is not None:
        argv += ["--queues", queues]
    if drain:
        argv.append("--drain")
    become(argv, child_environment(settings))


def flower() -> None:
    """Run Flower, a dashboard of the job queue, in the foreground.

    It listens on the loopback interface only, requires a password (FANOUT_FLOWER__BASIC_AUTH or
    FLOWER_BASIC_AUTH; else a generated one is printed) and is read-only. Each row shows a job's
    agent and labels and its step, outcome or reason; FLOWER_TASKS_COLUMNS names other columns.
    """
    if find_spec("flower") is None:
        raise UsageProblem(NO_FLOWER)
    settings = attached(load_settings())
    address = "127.0.0.1"
    given = settings.flower.basic_auth
    login = given.get_secret_value() if given else os.environ.get("FLOWER_BASIC_AUTH", "")
    if login and not all(part.partition(":")[2] for part in login.split(",")):
        raise UsageProblem("FANOUT_FLOWER__BASIC_AUTH and FLOWER_BASIC_AUTH are user:password.")
    if not login:
        login = f"{FLOWER_USER}:{secrets.token_urlsafe(12)}"
        output.notice(f"Flower's user and password, generated for this run: {login}")
    port = _flower_port(settings)
    output.notice(f"Flower: http://{address}:{port}")
    if unused := sorted(FIXED & os.environ.keys()):
        output.notice(
            f"It listens on {address} and changes nothing; not used: {', '.join(unused)}."
        )
    needed = {
        name: value
        for name, value in child_environment(settings).items()
        if name.startswith(FLOWER_PREFIXES)
    }
    env = helper_environment() | {
        **needed,
        "FLOWER_BASIC_AUTH": login,  # not in argv, which every user of the machine can read
        "FLOWER_ADDRESS": address,
        "FLOWER_PORT": str(port),
        "FLOWER_READ_ONLY": "true",
        "FLOWER_INSPECT_TIMEOUT": os.environ.get("FLOWER_INSPECT_TIMEOUT", "3000"),
    }
    become(python_argv("fanout.workers.dashboard"), env)


def _flower_port(settings: Settings) -> int:
    """Return the port: ours, else Flower's own variable, else the default.

    Raises:
        UsageProblem: The variable is no port.
    """
    given = os.environ.get("FLOWER_PORT", "")
    if "port" in settings.flower.model_fields_set or not given:
        return settings.flower.port
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= MAX_PORT:
        raise UsageProblem(f"FLOWER_PORT is a port from 1 to {MAX_PORT:,}, not {given[:20]!r}.")
    return int(given)
