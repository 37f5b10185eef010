"""Tiny containers that hold a namespace or a mount, and end with their stream, as sandboxes do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fanout.orchestrator.cancellation import cancel_and_wait, uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.attach import AttachStream
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.naming import Names

SHARED = "/shared"
"""The path of the shared volume for its holder."""


@dataclass
class Holder:
    """A running one."""

    container: str
    stream: AttachStream
    end: asyncio.Task[bytes]
    """Done when the container has ended: it never writes anything."""

    @classmethod
    async def start(cls, engine: Engine, name: str, config: Mapping[str, Any]) -> Self:
        """Start one; `config` is from `container_config.holder_config`.

        Raises:
            SandboxFailure: the engine does not answer, or failed to start it.
        """
        try:
            await engine.create_container(name, config)
            stream = await engine.attach(name)
            await engine.start(name)
        except BaseException:
            await uninterrupted(engine.remove_container(name))
            raise
        return cls(name, stream, asyncio.create_task(stream.read()))

    async def close(self, engine: Engine) -> None:
        """End and remove it; what an engine fails to remove is left to the reaper."""
        await cancel_and_wait(self.end)
        await self.stream.close()
        with contextlib.suppress(SandboxFailure):
            await engine.remove_container(self.container)


async def share_store(
    engine: Engine, names: Names, image: str, store: dict[str, Any], mount_point: str
) -> tuple[Holder, str]:
    """Make the store's folder shared on the engine's host, as long as the holder lives.

    Args:
        engine: the engine.
        names: those of this worker.
        image: the holder's image.
        store: the mount of the store, which is kept in use.
        mount_point: the store's folder on the engine's host.

    Returns:
        The holder, and the path of the shared folder: the engine sees what a steward mounts there,
        also where the host's own mounts are private.
    """
    options = {"type": "none", "o": "bind,rshared", "device": mount_point}
    shared_point = await engine.create_volume(names.shared, options, names.labels("shared"))
    shared = container_config.local_volume(
        names.shared, SHARED, options=options, labels=names.labels("shared")
    )
    config = container_config.holder_config(
        image=image, labels=names.labels("shared"), mounts=[store, shared]
    )
    return await Holder.start(engine, names.container("shared"), config), shared_point
