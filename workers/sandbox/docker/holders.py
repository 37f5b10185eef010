"""Tiny containers that hold a network namespace or a mount, and end with their stream.

The network holder spares sandboxes the hook of old engines. Before version 28 Docker runs a hook
for each container's network, even for `none`: 100 ms of a processor, more than all else of a start.
It runs none for a container whose network is disabled. The kernel gives that one a namespace of its
own, with a loopback device, too; but it lacks /etc/hosts, unless it names another container whose
network it would join. So one holder, a tiny container with network `none`, lends its /etc/hosts to
all sandboxes of a worker. That they share no namespace is checked for each before its job has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Self

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait, uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure

from . import container_config
from .engine import AttachStream, Engine
from .naming import Names

SHARED = "/shared"
"""The path of the shared volume for its holder."""
Gate = Callable[[], AbstractAsyncContextManager[None]]

NONE = "none"

_WITHOUT_HOOK = 28
"""The first version of Docker that makes an empty network without the hook."""

log = structlog.get_logger(__name__)


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


def networks_are_slow(engine_version: str) -> bool:
    """Return whether an engine of this version is slow to make a network namespace."""
    major = engine_version.partition(".")[0]
    return major.isdigit() and int(major) < _WITHOUT_HOOK


class EmptyNetworks:
    """The network namespaces of one worker's sandboxes."""

    def __init__(self, engine: Engine, names: Names, image: str) -> None:
        self._engine = engine
        self._names = names
        self._image = image
        self._gate: Gate | None = None
        """None: the engine makes them."""
        self._holder: Holder | None = None
        self._starting: asyncio.Task[None] | None = None
        self._used: dict[str, int] = {}

    def avoid_hook(self, gate: Gate) -> None:
        """Have sandboxes started without the hook from now on.

        Args:
            gate: limits simultaneous starts, also of the holder.
        """
        self._gate = gate
        self._begin()

    def take(self) -> str:
        """Return the network mode for one sandbox; see `container_config.sandbox_config`."""
        if self._gate is None:
            return NONE
        if self._holder is not None and not self._holder.end.done():
            return f"container:{self._holder.container}"
        self._begin()
        return NONE

    def claim(self, container: str, namespace: int) -> bool:
        """Record which namespace a container has.

        Args:
            container: its id.
            namespace: its number; 0 if that is unknown.

        Returns:
            Whether it is the container's own; if not, the engine makes them from now on.
        """
        if not namespace or namespace in self._used.values():
            log.warning("the engine runs its hook for each sandbox: they would share a network")
            self._gate = None
            return False
        self._used[container] = namespace
        return True

    def give_back(self, container: str) -> None:
        """Forget the namespace of a container that ends."""
        self._used.pop(container, None)

    async def close(self) -> None:
        """Remove the holder."""
        self._gate = None
        if self._starting is not None:
            await cancel_and_wait(self._starting)
        if self._holder is not None:
            await self._holder.close(self._engine)
            self._holder = None

    def _begin(self) -> None:
        assert self._gate is not None  # noqa: S101 - asked by its callers
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(self._gate))

    async def _start(self, gate: Gate) -> None:
        with contextlib.suppress(SandboxFailure):  # it only makes starts faster
            async with gate():
                labels = self._names.labels("network")
                config = container_config.holder_config(image=self._image, labels=labels)
                name = self._names.container("network")
                self._holder = await Holder.start(self._engine, name, config)
