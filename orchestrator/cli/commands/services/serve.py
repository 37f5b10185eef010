"""`serve`: the service over HTTP, A2A and MCP, and its page."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.configuration.log_setup import set_up_logging
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.process_secrets import seal_process


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

    It runs in the foreground until SIGTERM or Ctrl-C. Several servers may run side by side, on one
    machine or many: they keep no state of their own.
    """
    settings = load_settings()
    seal_process()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update={"api": settings.api.model_copy(update=given)})
    set_up_logging(settings.log_level)

    from fanout.orchestrator.server.process import serve as run  # noqa: PLC0415 - after the seal

    asyncio.run(run(settings, _announce))


async def _announce(listening: Any) -> None:
    output.notice(f"fanout serves at {listening.url}")
    if listening.is_local:
        output.notice(f"Open it, once and within ten minutes: {await listening.login_link()}")
