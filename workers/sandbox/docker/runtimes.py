"""Which OCI runtime starts the sandboxes when no setting names one."""

from __future__ import annotations

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

log = structlog.get_logger(__name__)


async def lighter_runtime(
    engine: Engine, names: Names, image: str, info: Mapping[str, Any]
) -> str | None:
    """Return an engine's lighter runtime if it works there; None to use the engine's default.

    An engine lists runtimes that cannot start anything: `crun` refuses hosts with hybrid control
    groups. So one container is started with it. A default that is not the usual one was chosen by
    somebody, for example for its isolation, and is kept.

    Args:
        engine: The engine.
        names: Those of this worker.
        image: The image of the container.
        info: The engine's answer to `GET /info`.
    """
    if info.get("DefaultRuntime") != _USUAL or _LIGHTER not in (info.get("Runtimes") or {}):
        return None
    labels = names.labels("network")
    config = container_config.holder_config(image=image, labels=labels, runtime=_LIGHTER)
    try:
        probe = await Holder.start(engine, names.container("network"), config)
    except SandboxFailure as failure:
        log.info("the engine's lighter runtime does not work", runtime=_LIGHTER, error=str(failure))
        return None
    await probe.close(engine)
    return _LIGHTER
