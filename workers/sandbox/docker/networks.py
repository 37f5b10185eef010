"""Empty network namespaces, kept ready on engines that are slow to make one.

Before version 28 Docker runs a hook for each container's network, about 95 ms even for `none`. A
holder is a tiny container with network `none`; a sandbox that joins its namespace starts without
the hook. A namespace is never shared by two sandboxes at once, and has only a loopback device.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.holders import Holder
from fanout.workers.sandbox.docker.naming import Names

Gate = Callable[[], AbstractAsyncContextManager[None]]

NONE = "none"

_WITHOUT_HOOK = 28
"""The first version of Docker that makes an empty network without the hook."""

_MOST_IDLE = 32
"""About 4 MB each on the engine's host."""


def networks_are_slow(engine_version: str) -> bool:
    """Return whether an engine of this version is slow to make a network namespace."""
    major = engine_version.partition(".")[0]
    return major.isdigit() and int(major) < _WITHOUT_HOOK


class EmptyNetworks:
    """The idle namespaces of one worker.

    When none is idle, a sandbox gets its own network.
    """

    def __init__(self, engine: Engine, names: Names, image: str) -> None:
        self._engine = engine
        self._names = names
        self._image = image
        self._idle: list[Holder] = []
        self._lent: dict[str, Holder] = {}
        self._gate: Gate | None = None
        self._wanted = 0
        self._filling: asyncio.Task[None] | None = None

    def keep_ready(self, wanted: int, gate: Gate) -> None:
        """Keep so many idle namespaces ready from now on.

        Args:
            wanted: how many.
            gate: limits simultaneous starts, also of the holders, which nobody waits for.
        """
        self._wanted, self._gate = wanted, gate
        self._fill()

    def take(self) -> str:
        """Return the network mode for one sandbox; `give_back` returns it."""
        mode = NONE
        while self._idle and mode == NONE:
            holder = self._idle.pop()
            if not holder.end.done():
                mode = f"container:{holder.container}"
                self._lent[mode] = holder
        self._fill()
        return mode

    async def give_back(self, mode: str, *, reusable: bool) -> None:
        """Return a namespace.

        Args:
            mode: from `take`.
            reusable: whether the sandbox certainly has ended.
        """
        holder = self._lent.pop(mode, None)
        if holder is None:
            return
        if reusable and not holder.end.done() and len(self._idle) < _MOST_IDLE:
            self._idle.append(holder)
        else:
            await holder.close(self._engine)

    async def close(self) -> None:
        """Remove the holders."""
        self._wanted = 0
        if self._filling is not None:
            await cancel_and_wait(self._filling)
        holders, self._idle = [*self._idle, *self._lent.values()], []
        self._lent.clear()
        await asyncio.gather(*(holder.close(self._engine) for holder in holders))

    def _fill(self) -> None:
        if len(self._idle) < self._wanted and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill_up())

    async def _fill_up(self) -> None:
        """Make holders one after another, each after the sandboxes that wait for their start."""
        with contextlib.suppress(SandboxFailure):  # it only makes starts faster
            while self._gate is not None and len(self._idle) < self._wanted:
                async with self._gate():
                    self._idle.append(await self._hold())

    async def _hold(self) -> Holder:
        labels = self._names.labels("network")
        config = container_config.holder_config(image=self._image, labels=labels)
        return await Holder.start(self._engine, self._names.container("network"), config)
