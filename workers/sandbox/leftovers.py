"""What dead workers left on an engine, found by label."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from workers.sandbox.engine import Engine
from workers.sandbox.naming import EXPIRES, JOB, ROLE, Names
from workers.sandbox.steward_client import Steward


async def remove_leftovers(
    engine: Engine, names: Names, steward: Steward, is_live: Callable[[str], Awaitable[bool]]
) -> int:
    """Remove the owner's containers, volumes and files of jobs that are not live; how many things went.

    Running containers of a dead worker end by themselves, with their streams. Left over are containers that
    were created and never started, those of jobs that have ended elsewhere, volumes and files.
    """
    known: dict[str, bool] = {}

    async def has_ended(job: str) -> bool:
        if job not in known:
            known[job] = await is_live(job)
        return not known[job]

    removed = 0
    for container in await engine.containers([names.of_owner]):
        job = container["Labels"].get(JOB)
        if (job is not None and await has_ended(job)) or _was_never_started(container):
            removed += await engine.remove_container(container["Id"])
    for volume in await engine.volumes(names.of_owner):
        job = volume["Labels"].get(JOB)
        is_old_code = volume["Labels"].get(ROLE) == "code" and volume["Name"] != names.code(steward.code_id)
        if is_old_code or (job is not None and await has_ended(job)):
            removed += await engine.remove_volume(volume["Name"])
    for job in await steward.jobs():
        if await has_ended(job):
            removed += await steward.delete(job)
    return removed


def _was_never_started(container: dict[str, Any]) -> bool:
    return container["State"] == "created" and float(container["Labels"].get(EXPIRES, 0)) < time.time()
