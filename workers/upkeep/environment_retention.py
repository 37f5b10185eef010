"""How long prepared environments stay: those that no job has used for long are removed."""

from __future__ import annotations

import asyncio

import structlog

from fanout.orchestrator.jobs.failures import JobFailure

from ..sandbox import Environments

LOOK_SECONDS = 600.0
"""Between two looks: the disk of an environment is freed soon after it is due."""

log = structlog.get_logger(__name__)


class EnvironmentRetention:
    """Removes the environments that are due; every worker of an engine may.

    Args:
        environments: Those of the engine.
        unused_seconds: How long one stays that no job uses.
        most_bytes: The size of all above which the longest unused ones are removed.
    """

    def __init__(
        self, environments: Environments, *, unused_seconds: float, most_bytes: int
    ) -> None:
        self._environments = environments
        self._unused_seconds, self._most_bytes = unused_seconds, most_bytes

    async def run(self) -> None:
        """Remove what is due, at intervals, until cancelled; failures are logged."""
        while True:
            try:
                await self.remove_due()
            except JobFailure as error:
                log.warning("environments not looked at", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def remove_due(self) -> None:
        """Remove what is due now.

        Raises:
            SandboxFailure: The engine does not answer.
        """
        removed = await self._environments.remove(
            unused_seconds=self._unused_seconds, most_bytes=self._most_bytes
        )
        if removed:
            log.info("environments removed", count=len(removed))
