"""What installations that are gone left on the Docker engine, for `fanout doctor` and `clean`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fanout.orchestrator.client.attachment import attached
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.embedded.python_process import run_helper
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.records import Records


async def own_installation(settings: Settings) -> str | None:
    """Return the id of the installation whose ledger is in reach; None when none is."""
    try:
        url = str((await asyncio.to_thread(attached, settings)).redis_url)
        async with connect(url) as redis:
            return await Records(redis, Keys(settings.redis_prefix)).known_installation()
    except LedgerUnavailable:
        return None


async def left_by_others(settings: Settings) -> list[dict[str, Any]]:
    """Return the installations on the engine that have no running container and are not ours.

    An empty list when the engine does not answer: other checks say so.
    """
    own = await own_installation(settings)
    try:
        ended = await run_helper("fanout.workers.sandbox.docker.installations", "ls", "--json")
    except TimeoutError:
        return []
    found = json.loads(ended.output)["installations"] if ended.exit_code == 0 else []
    return [one for one in found if one["id"] != own and not one["running"]]
