"""`up` and `down`: start and stop the services of this machine."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import AsyncExitStack
from typing import Annotated, NamedTuple

import typer

from ...client import JobClient
from ...client.attachment import state_folder
from ...client.state_folder import StateFolder
from ...configuration.settings import PREFIX, Settings, load_settings
from ...embedded.server import Server
from ...embedded.services import Embedded, stop_embedded
from ...jobs.store.access_stores import open_access_stores
from ...jobs.worker_info import WorkerInfo
from ...server.access.sessions import create_login_link
from ..terminal import output
from ..terminal.options import AsJson, SandboxOption, chosen_sandbox
from ..terminal.waiting import waiting
from .images import with_images

EnvOption = Annotated[
    bool,
    typer.Option("--env", help="Print the variables with which other programs find them."),
]
ServeOption = Annotated[
    bool, typer.Option(help="Also serve the page and the service on the loopback interface.")
]


class _Running(NamedTuple):
    """The running services of this machine."""

    settings: Settings
    workers: list[WorkerInfo]
    url: str | None
    """The address of the service; None: it was not requested."""
    login: str | None
    """A link that logs in one browser, once."""


def up(
    *,
    env: EnvOption = False,
    serve: ServeOption = True,
    sandbox: SandboxOption = None,
    as_json: AsJson = False,
) -> None:
    """Start Redis, a worker, and the service with its page.

    They run in the background and keep running until `fanout down`; the link of the page logs in
    one browser, once. Programs that use fanout on this machine find them; --env is for others: eval
    "$(fanout up --env)".
    """
    settings = load_settings(**chosen_sandbox(sandbox))
    folder = StateFolder(settings.state_dir)
    record = folder.read_record()
    running = with_images(lambda: asyncio.run(_up(settings, serve=serve)))
    reached = running.settings
    environment = {
        f"{PREFIX}REDIS_URL": str(reached.redis_url),  # it may contain a password: only for --env
        f"{PREFIX}REDIS_PREFIX": reached.redis_prefix,
        f"{PREFIX}BLOBS_URL": reached.blobs,
    }
    if as_json:
        workers = [vars(one) for one in running.workers]
        document: dict[str, object] = {"state_dir": str(settings.state_dir), "workers": workers}
        if running.url:
            document["server"] = {"url": running.url, "login": running.login}
        output.document(document | ({"environment": environment} if env else {}))
        return
    is_same = record is not None and record == folder.read_record()
    state = "Already running" if is_same else "Started"
    tell = output.notice if env else output.payload
    tell(f"{state} in {settings.state_dir}; to stop: fanout down")
    if running.login:
        tell(f"The page, once and within ten minutes: {running.login}")
    if env:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        output.payload("\n".join(lines))
    announce_sandbox(running.workers)


async def _up(settings: Settings, *, serve: bool) -> _Running:
    async with AsyncExitStack() as stack:
        with waiting("starting Redis and the worker"):
            services = Embedded(settings, keep=True, serve=serve)
            found = (await stack.enter_async_context(services)).settings
        client = await stack.enter_async_context(JobClient.from_settings(found))
        url = login = None
        if serve:
            folder = state_folder(settings)
            with waiting("starting the service"):
                async with folder.locked():
                    url = await Server(folder).start(found)
                login = await _login_link(found, url)
        return _Running(found, await client.workers(), url, login)


async def _login_link(settings: Settings, url: str) -> str:
    async with open_access_stores(str(settings.redis_url), settings.redis_prefix) as stores:
        return await create_login_link(
            stores.sessions,
            url,
            operator=await stores.operator(),
            seconds=settings.api.login_link_seconds,
        )


def down(as_json: AsJson = False) -> None:
    """Stop the services of `fanout up` or `fanout demo --keep`.

    Jobs that have not ended resume at the next start.
    """
    settings = load_settings()
    with waiting("stopping the service, the worker and Redis"):
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
