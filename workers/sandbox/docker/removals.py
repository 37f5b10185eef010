"""Removal of closed sandboxes from the engine, without waiting for an engine that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.networks import EmptyNetworks

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 1.5
"""How long the end of an attempt waits for its container's removal, which takes a tenth of a
second. An engine that hangs must not delay a job's cancellation: the end of the stream ends the
container, too."""


class Removals:
    """The removals in progress."""

    def __init__(self, engine: Engine, networks: EmptyNetworks) -> None:
        self._engine = engine
        self._networks = networks
        self._in_progress: set[asyncio.Task[None]] = set()

    async def remove(self, container: str, volumes: Sequence[str], network: str) -> None:
        """Remove a sandbox's container and volumes, and give its network back.

        A removal that takes long continues in the background.

        Args:
            container: its name.
            volumes: those of its job.
            network: its network mode, from `EmptyNetworks.take`.
        """
        removal = asyncio.create_task(self._remove(container, volumes, network))
        self._in_progress.add(removal)
        removal.add_done_callback(self._in_progress.discard)
        await asyncio.wait({removal}, timeout=LEAVE_SECONDS)

    async def _remove(self, container: str, volumes: Sequence[str], network: str) -> None:
        is_removed = False
        try:
            await self._engine.remove_container(container)
            is_removed = True
            for volume in volumes:
                await self._engine.remove_volume(volume)
        except SandboxFailure as error:
            log.warning(
                "sandbox not removed, the reaper will retry", name=container, error=str(error)
            )
        await self._networks.give_back(network, reusable=is_removed)

    async def finish(self) -> None:
        """Wait for the removals in progress."""
        await asyncio.gather(*self._in_progress)
