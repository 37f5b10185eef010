"""The processes of an installation.

`worker`, `flower`, `images`, and `up` and `down` for one machine.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import AsJson
from orchestrator.cli.terminal.session import run
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import (
    Embedded,
    attached,
    child_environment,
    stop_embedded,
)
from orchestrator.embedded.state_folder import StateFolder
from orchestrator.jobs.worker_info import WorkerInfo

FLOWER_USER = "fanout"


def worker(
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once in this process.")
    ] = None,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Names of the queues to serve.")
    ] = None,
    drain: Annotated[bool, typer.Option(help="On SIGTERM finish the running jobs first.")] = False,
) -> None:
    """Run a worker in the foreground."""
    argv = ["-m", "workers"]
    if concurrency is not None:
        argv += ["--concurrency", str(concurrency)]
    if queues is not None:
        argv += ["--queues", queues]
    if drain:
        argv.append("--drain")
    settings = attached(load_settings())
    _become(argv, child_environment(settings))


def flower() -> None:
    """Run Flower, the queue's dashboard, in the foreground.

    It is reached from this machine only, behind a password, and is for looking only.
    """
    settings = attached(load_settings())
    address = "127.0.0.1"
    given = settings.flower.basic_auth
    if given is None:
        login = f"{FLOWER_USER}:{secrets.token_urlsafe(12)}"
        output.notice(f"Flower's user and password, made for this run: {login}")
    else:
        login = given.get_secret_value()
    output.notice(f"Flower: http://{address}:{settings.flower.port}")
    env = child_environment(settings) | {
        "FLOWER_BASIC_AUTH": login,  # in argv every user of the machine could read it
        "FLOWER_ADDRESS": address,
        "FLOWER_PORT": str(settings.flower.port),
        "FLOWER_READ_ONLY": "true",
        "FLOWER_INSPECT_TIMEOUT": "3000",
    }
    _become(["-m", "celery", "-A", "workers.celery_app", "flower"], env)


images = typer.Typer(help="The sandboxes' images.", no_args_is_help=True)


@images.command("build")
def images_build(
    names: Annotated[list[str] | None, typer.Argument(help="Which ones; default all.")] = None,
    base: Annotated[str | None, typer.Option(metavar="IMAGE", help="Build on this image.")] = None,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap", help="Make the base from Debian packages: no registry is needed."
        ),
    ] = False,
) -> None:
    """Build sandbox images."""
    argv = ["build", *(names or ())]
    if base is not None:
        argv += ["--base", base]
    if bootstrap:
        argv.append("--bootstrap")
    _images(argv)


@images.command("ls")
def images_ls(as_json: AsJson = False) -> None:
    """List the sandbox images and whether the engine has them."""
    _images(["ls", *(["--json"] if as_json else [])])


def up(as_json: AsJson = False) -> None:
    """Start a Redis and a worker here that stay until `down`."""
    settings = load_settings()
    folder = StateFolder(settings.state_dir)
    record = folder.read_record()
    workers = run(_up(settings))
    if as_json:
        output.document(
            {"state_dir": str(settings.state_dir), "workers": [vars(one) for one in workers]}
        )
        return
    already = record is not None and record == folder.read_record()
    output.payload(
        f"{'Runs already' if already else 'Started'} in {settings.state_dir}; stop it: fanout down"
    )
    announce_sandbox(workers)


async def _up(settings: Settings) -> list[WorkerInfo]:
    async with (
        Embedded(settings, keep=True) as embedded,
        JobClient.from_settings(embedded.settings) as client,
    ):
        return await client.workers()


def down(as_json: AsJson = False) -> None:
    """Stop what `up` or `demo --keep` left running.

    Jobs that have not ended go on at the next start.
    """
    settings = load_settings()
    stopped = asyncio.run(stop_embedded(settings))
    if as_json:
        output.document({"state_dir": str(settings.state_dir), "stopped": stopped})
    elif stopped:
        output.payload(f"Stopped what ran in {settings.state_dir}.")
    else:
        output.notice(f"Nothing runs in {settings.state_dir}.")


def announce_sandbox(workers: list[WorkerInfo]) -> None:
    """Say where commands will run; loudly where nothing isolates them."""
    kinds = sorted({one.sandbox for one in workers})
    if "local" in kinds:
        reasons = sorted(
            {one.why_local for one in workers if one.sandbox == "local" and one.why_local}
        )
        output.notice(
            " ".join(
                (
                    "WARNING: jobs run as plain processes of this machine.",
                    *map(output.one_line, reasons),
                    "That isolates nothing: they can read and change what you can.",
                )
            )
        )
    else:
        output.notice(f"Sandbox: {', '.join(kinds) or 'none'}")


def _images(argv: list[str]) -> NoReturn:
    settings = load_settings()
    command = [sys.executable, "-m", "workers.sandbox.docker.images", *argv]
    ended = subprocess.run(command, env=child_environment(settings), check=False)  # noqa: S603 - our own program
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else 1)


def _become(arguments: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this process by a Python program: signals and exit codes are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], env)  # noqa: S606 - our own program, no shell
