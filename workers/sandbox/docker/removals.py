"""Removes what sandboxes occupied on the engine, without making anybody wait for an engine that hangs."""

from __future__ import annotations

import asyncio

import structlog

from orchestrator.jobs.failures import SandboxFailure
from workers.sandbox.docker.engine import Engine
from workers.sandbox.docker.networks import EmptyNetworks

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 1.5
"""How long an attempt's end waits for its container's removal, which takes a tenth of a second. An
engine that hangs does not keep a job from being cancelled: the end of the stream ends the
container, too."""


class Removals:
    """The removals that are under way."""

    def __init__(self, engine: Engine, networks: EmptyNetworks) -> None:
        self._engine = engine
        self._networks = networks
        self._under_way: set[asyncio.Task[None]] = set()

    async def remove(self, container: str, volume: str, network: str) -> None:
        """Remove a sandbox's container and volume, and give its network back.

        What takes long goes on.
        """
        removal = asyncio.create_task(self._remove(container, volume, network))
        self._under_way.add(removal)
        removal.add_done_callback(self._under_way.discard)
        await asyncio.wait({removal}, timeout=LEAVE_SECONDS)

    async def _remove(self, container: str, volume: str, network: str) -> None:
        gone = False
        try:
            await self._engine.remove_container(container)
            gone = True
            await self._engine.remove_volume(volume)
        except SandboxFailure as error:
            log.warning(
                "a sandbox was not removed, the reaper tries again",
                name=container,
                error=str(error),
            )
        await self._networks.give_back(network, reusable=gone)

    async def finish(self) -> None:
        """Await those that are under way."""
        await asyncio.gather(*self._under_way)
