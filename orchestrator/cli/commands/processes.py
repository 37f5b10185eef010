"""`worker`, `flower`, `up` and `down`: start and stop an installation's processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from importlib.util import find_spec
from typing import Annotated

import typer

from fanout.orchestrator.cli.commands.setup.images import with_images
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.cli.terminal.options import AsJson, SandboxOption, chosen_sandbox
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.client.attachment import attached
from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.configuration.settings import PREFIX, Settings, load_settings
from fanout.orchestrator.embedded.python_process import (
    become,
    child_environment,
    helper_environment,
    python_argv,
)
from fanout.orchestrator.embedded.sandbox_check import require_sandbox
from fanout.orchestrator.embedded.services import Embedded, stop_embedded
from fanout.orchestrator.jobs.worker_info import WorkerInfo

NO_FLOWER = "Flower is not installed: pip install 'fanout-orchestrator[flower]'"
FLOWER_USER = "fanout"
FLOWER_PREFIXES = ("FANOUT_", "FLOWER_")
"""Of the variables that Flower gets: no keys of models."""

EnvOption = Annotated[
    bool,
    typer.Option("--env", help="Print the variables by which other programs find them."),
]


def worker(
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Jobs at once in this process; default: FANOUT_WORKER__CONCURRENCY."
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
    with_images(lambda: asyncio.run(require_sandbox(settings)))
    argv = python_argv("fanout.workers")
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
    output.notice(f"Flower: http://{address}:{settings.flower.port}")
    needed = {
        name: value
        for name, value in child_environment(settings).items()
        if name.startswith(FLOWER_PREFIXES)
    }
    env = helper_environment() | {
        **needed,
        "FLOWER_BASIC_AUTH": login,  # not in argv, which every user of the machine can read
        "FLOWER_ADDRESS": address,
        "FLOWER_PORT": str(settings.flower.port),
        "FLOWER_READ_ONLY": "true",
        "FLOWER_INSPECT_TIMEOUT": "3000",
    }
    become(python_argv("fanout.workers.dashboard"), env)


def up(*, env: EnvOption = False, sandbox: SandboxOption = None, as_json: AsJson = False) -> None:
    """Start a private Redis and a worker in the background.

    They keep running until `fanout down`. Programs that use fanout on this machine find them;
    --env is for others: eval "$(fanout up --env)".
    """
    settings = load_settings(**chosen_sandbox(sandbox))
    folder = StateFolder(settings.state_dir)
    record = folder.read_record()
    reached, workers = with_images(lambda: asyncio.run(_up(settings)))
    environment = {
        f"{PREFIX}REDIS_URL": str(reached.redis_url),  # it may contain a password: only for --env
        f"{PREFIX}REDIS_PREFIX": reached.redis_prefix,
        f"{PREFIX}BLOBS_URL": reached.blobs,
    }
    if as_json:
        document = {"state_dir": str(settings.state_dir), "workers": [vars(one) for one in workers]}
        output.document(document | ({"environment": environment} if env else {}))
        return
    is_same = record is not None and record == folder.read_record()
    state = "Already running" if is_same else "Started"
    tell = output.notice if env else output.payload
    tell(f"{state} in {settings.state_dir}; to stop: fanout down")
    if env:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        output.payload("\n".join(lines))
    announce_sandbox(workers)


async def _up(settings: Settings) -> tuple[Settings, list[WorkerInfo]]:
    async with (
        Embedded(settings, keep=True) as embedded,
        JobClient.from_settings(embedded.settings) as client,
    ):
        return embedded.settings, await client.workers()


def down(as_json: AsJson = False) -> None:
    """Stop the services of `fanout up` or `fanout demo --keep`.

    Jobs that have not ended resume at the next start.
    """
    settings = load_settings()
    stopped = asyncio.run(stop_embedded(settings))
    if as_json:
        output.document({"state_dir": str(settings.state_dir), "stopped": stopped})
    elif stopped:
        output.payload(f"Stopped Redis and worker in {settings.state_dir}.")
    else:
        output.notice(f"Nothing is running in {settings.state_dir}.")


def announce_sandbox(workers: list[WorkerInfo]) -> None:
    """Print where commands will run, with a warning if nothing isolates them."""
    kinds = sorted({one.sandbox for one in workers})
    if "local" in kinds:
        reasons = {one.why_local for one in workers if one.sandbox == "local" and one.why_local}
        sentences = (
            "WARNING: jobs run as plain processes of this machine.",
            *map(output.one_line, sorted(reasons)),
            "That isolates nothing: they can read and change what you can.",
        )
        output.notice(" ".join(sentences))
    else:
        output.notice(f"Sandbox: {', '.join(kinds) or 'none'}")
