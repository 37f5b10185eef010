"""`worker`, `flower`, `images`, `up` and `down`: start and stop an installation's processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from typing import Annotated, NoReturn

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.options import AsJson, SandboxOption, chosen_sandbox
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.embedded.python_process import (
    child_environment,
    helper_environment,
    python_argv,
)
from fanout.orchestrator.embedded.sandbox_check import require_sandbox
from fanout.orchestrator.embedded.services import Embedded, attached, stop_embedded
from fanout.orchestrator.embedded.state_folder import StateFolder
from fanout.orchestrator.jobs.worker_info import WorkerInfo

FLOWER_USER = "fanout"
FLOWER_PREFIXES = ("FANOUT_", "FLOWER_")
"""Of the variables that Flower gets: no keys of models."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")
"""For building images; they may contain a password, and no other child gets them."""


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
    asyncio.run(require_sandbox(settings))
    argv = python_argv("fanout.workers")
    if concurrency is not None:
        argv += ["--concurrency", str(concurrency)]
    if autoscale is not None:
        argv += ["--autoscale", autoscale]
    if queues is not None:
        argv += ["--queues", queues]
    if drain:
        argv.append("--drain")
    _become(argv, child_environment(settings))


def flower() -> None:
    """Run Flower, a dashboard of the job queue, in the foreground.

    It listens on the loopback interface only, requires a password (FANOUT_FLOWER__BASIC_AUTH, else
    a generated one is printed) and is read-only.
    """
    settings = attached(load_settings())
    address = "127.0.0.1"
    given = settings.flower.basic_auth
    if given is None:
        login = f"{FLOWER_USER}:{secrets.token_urlsafe(12)}"
        output.notice(f"Flower's user and password, generated for this run: {login}")
    else:
        login = given.get_secret_value()
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
    _become(python_argv("fanout.workers.dashboard"), env)


def images_build(
    names: Annotated[
        list[str] | None, typer.Argument(help="The images to build; default: all.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE", help="The image to build on; default: that of the Dockerfile."
        ),
    ] = None,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            help="Build the base from Debian packages, without an image registry; needs root.",
        ),
    ] = False,
) -> None:
    """Build sandbox images on the Docker engine."""
    argv = ["build", *(names or ())]
    if base is not None:
        argv += ["--base", base]
    if bootstrap:
        argv.append("--bootstrap")
    _images(argv)


def images_ls(as_json: AsJson = False) -> None:
    """List the sandbox images and whether the Docker engine has them."""
    _images(["ls", *(["--json"] if as_json else [])])


def up(*, sandbox: SandboxOption = None, as_json: AsJson = False) -> None:
    """Start a private Redis and a worker in the background.

    They keep running until `fanout down`.
    """
    settings = load_settings(**chosen_sandbox(sandbox))
    folder = StateFolder(settings.state_dir)
    record = folder.read_record()
    workers = asyncio.run(_up(settings))
    if as_json:
        output.document(
            {"state_dir": str(settings.state_dir), "workers": [vars(one) for one in workers]}
        )
        return
    is_same = record is not None and record == folder.read_record()
    state = "Already running" if is_same else "Started"
    output.payload(f"{state} in {settings.state_dir}; to stop: fanout down")
    announce_sandbox(workers)


async def _up(settings: Settings) -> list[WorkerInfo]:
    async with (
        Embedded(settings, keep=True) as embedded,
        JobClient.from_settings(embedded.settings) as client,
    ):
        return await client.workers()


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


def _images(argv: list[str]) -> NoReturn:
    command = python_argv("fanout.workers.sandbox.docker.images", *argv)
    env = helper_environment() | {
        name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ
    }
    ended = subprocess.run(command, env=env, check=False)  # noqa: S603 - our own program
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else 1)


def _become(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this process by a Python program, which then receives signals directly."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, env)  # noqa: S606 - our own program, no shell
