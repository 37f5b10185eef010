"""`worker`, `serve`, `flower` and `adk`: run an installation's processes in the foreground."""

from __future__ import annotations

import asyncio
import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ...client.attachment import attached
from ...client.state_folder import write_private
from ...configuration.log_setup import set_up_logging
from ...configuration.settings import Settings, load_settings
from ...embedded.python_process import (
    become,
    child_environment,
    helper_environment,
    program_environment,
    python_argv,
)
from ...private_files import make_private_folder
from ...process_secrets import seal_process
from ..terminal import output
from ..terminal.exit_codes import UsageProblem
from ..terminal.options import SandboxOption, chosen_sandbox
from .images import check_sandbox, with_images

NO_FLOWER = "Flower is not installed: pip install 'fanout-orchestrator[flower]'"
FLOWER_USER = "fanout"
FLOWER_PREFIXES = ("FANOUT_", "FLOWER_")
"""The beginnings of the variables that Flower gets: no keys of models."""
MAX_PORT = 65_535
"""The largest TCP port."""
FIXED = {"FLOWER_ADDRESS", "FLOWER_READ_ONLY"}
"""Flower's own variables that would open it to other machines, or to changes."""

EnvOption = Annotated[
    bool,
    typer.Option("--env", help="Print the variables with which other programs find them."),
]
APP_COMMANDS = ("web", "run", "api_server")
"""ADK's commands whose first argument is the folder of an agent, which they run."""

AGENT_MODULE = '''"""Written by `fanout adk`: where ADK's commands find fanout's coordinator."""

from fanout.orchestrator.agent import app

__all__ = ["app"]
'''


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
            help="Processes that share these jobs; 0: as many as are useful on this machine's cores.",
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
    become(python_argv("fanout.workers.extras.dashboard"), env)


def _flower_port(settings: Settings) -> int:
    """Return the port: fanout's setting, else Flower's own variable, else the default.

    Raises:
        UsageProblem: The variable is not a port.
    """
    given = os.environ.get("FLOWER_PORT", "")
    if "port" in settings.flower.model_fields_set or not given:
        return settings.flower.port
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= MAX_PORT:
        raise UsageProblem(
            f"FLOWER_PORT has to be a port from 1 to {MAX_PORT:,}, not {given[:20]!r}."
        )
    return int(given)


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            help="The address to listen on; default: FANOUT_API__HOST, else 127.0.0.1. One that "
            "other machines reach needs a key (fanout keys create)."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="0: any free one; default: FANOUT_API__PORT, else 8642."
        ),
    ] = None,
) -> None:
    """Serve jobs over HTTP, A2A and MCP, and the page.

    It runs in the foreground until SIGTERM or Ctrl-C. Several servers may run at the same time, on
    one machine or many: they keep no state.
    """
    settings = load_settings()
    seal_process()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update={"api": settings.api.model_copy(update=given)})
    set_up_logging(settings.log_level)

    from ...server.process import serve as run  # noqa: PLC0415 - after the seal

    asyncio.run(run(settings, _announce))


async def _announce(listening: Any) -> None:
    output.notice(f"fanout serves at {listening.url}")
    if listening.is_local:
        output.notice(f"Open it, once and within ten minutes: {await listening.login_link()}")


def adk(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="web|run|api_server [ARGUMENT]…", help="The arguments of the command `adk`."
        ),
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print the agent's folder, for calling `adk` yourself.")
    ] = False,
) -> None:
    """Run ADK's own tools on the coordinator.

    They are its web page, a conversation here, and its API server. The arguments after the
    command's name are passed on to ADK: fanout adk web --port 8001

    The workspace is FANOUT_WORKSPACE, else this folder. ADK stores its sessions next to the agent's
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
    """Write the folder of the agent for ADK, and return it.

    It is not the installed package: ADK keeps sessions in an agent's folder, and puts the folder
    above it in front of the path.
    """
    folder = state_dir.absolute() / "adk" / "orchestrator"
    make_private_folder(folder)
    write_private(folder / "agent.py", AGENT_MODULE)
    return folder
