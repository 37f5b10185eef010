"""Which OCI runtime starts the sandboxes when no setting names one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.holders import Holder
from fanout.workers.sandbox.docker.naming import Names

_USUAL, _LIGHTER = "runc", "crun"
"""Both isolate alike. The lighter one takes a tenth less of the engine's processor for a start."""

_FIT = b"fit"
_PROBE = ("sh", "-c", "mkdir /sys/fs/cgroup/probe 2>/dev/null || echo fit")
_PROBE_SECONDS = 10.0
"""The longest that a container takes to start and end on a busy engine."""

log = structlog.get_logger(__name__)


async def lighter_runtime(
    engine: Engine, names: Names, image: str, info: Mapping[str, Any]
) -> str | None:
    """Return an engine's lighter runtime if it is fit; None to use the engine's default.

    An engine lists runtimes that cannot start anything: `crun` refuses hosts with hybrid control
    groups. With those of version 1, it gives a job a folder to write in beside its own, which no
    limit of ours bounds. So one container is started with it and tries that. A default that is not
    the usual one was chosen by somebody, for example for its isolation, and is kept.

    Args:
        engine: The engine.
        names: Those of this worker.
        image: The image of the container.
        info: The engine's answer to `GET /info`.
    """
    if info.get("DefaultRuntime") != _USUAL or _LIGHTER not in (info.get("Runtimes") or {}):
        return None
    labels = names.labels("network")
    config = container_config.probe_config(image, list(_PROBE), labels, runtime=_LIGHTER)
    said, reason = b"", "its containers are not as closed as they must be"
    try:
        probe = await Holder.start(engine, names.container("network"), config)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                said = await probe.end
        finally:
            await probe.close(engine)
    except SandboxFailure as failure:
        reason = str(failure)
    except TimeoutError:
        reason = "its container does not end"
    if said.strip() == _FIT:
        return _LIGHTER
    log.info("the engine's lighter runtime is not used", runtime=_LIGHTER, reason=reason)
    return None
