"""`python -P -m fanout.workers.health`: whether a worker of this host is at work."""

from __future__ import annotations

import asyncio
import socket
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which -m without -P puts first

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.registrations import Registrations
from fanout.orchestrator.jobs.worker_info import WorkerLoad

from .startup import load_worker_settings


async def find_problem(redis_url: str, prefix: str, host: str) -> str:
    """Return why a host has no worker at work; empty when it has one.

    A worker's registration is valid for a few seconds, and renewed by the loop that runs its jobs:
    so a worker whose loop hangs is not at work. One that takes no jobs says so in it.

    Args:
        redis_url: The URL of Redis.
        prefix: The prefix of the installation's keys.
        host: The name of the host, in a container the container's id.
    """
    redis = connect(redis_url)
    try:
        registrations = Registrations(redis, Keys(prefix))
        names = await registrations.names()
        here = [name for name in names if name.startswith(f"{host}-")]  # as `bootstrap` names them
        workers = [worker async for worker in registrations.read(WorkerLoad, here)]
    except LedgerUnavailable as failure:
        return str(failure)
    finally:
        await redis.aclose()
    if not workers:
        return f"No worker of {host} is registered."
    return next((f"{one.name} takes no jobs: {one.unfit}." for one in workers if one.unfit), "")


def main() -> None:
    """Check it and exit with 0, or say what is wrong and exit with 1.

    Raises:
        SystemExit: Always.
    """
    settings, url = load_worker_settings()
    raise SystemExit(
        asyncio.run(find_problem(url, settings.redis_prefix, socket.gethostname())) or 0
    )


if __name__ == "__main__":
    main()
