"""Faults of containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any, ClassVar

from tests.chaos.faults.base import Fault, Hit


class ContainerKilled(Fault):
    """The engine is told to kill a container of a job."""

    role: ClassVar[str] = "sandbox"

    async def inject(self) -> Hit | None:
        return await asyncio.to_thread(self._inject)

    def _inject(self) -> Hit | None:
        engine = self._place.engine
        with contextlib.suppress(Exception):  # the engine is away, or the container was faster
            assert engine is not None
            running = [
                container
                for container in engine.containers(self._place.identity, self.role)
                if container["State"] == "running"
            ]
            if running:
                victim = running[self._target % len(running)]
                self._kill(engine.client.api, victim["Id"])
                return Hit(jobs=_jobs(victim["Names"]))
        return None

    def _kill(self, api: Any, container: str) -> None:
        api.kill(container, "SIGKILL")


class ResidentKilled(ContainerKilled):
    """The first process of a container dies."""

    def _kill(self, api: Any, container: str) -> None:
        pid = api.inspect_container(container)["State"]["Pid"]
        if pid:  # 0 when it has ended meanwhile; a signal to 0 would be one to ourselves
            os.kill(pid, signal.SIGKILL)


class StewardKilled(ContainerKilled):
    """A worker's steward dies, whatever it was doing."""

    role = "steward"


def _jobs(names: list[str]) -> list[str]:
    """The job in the name of a sandbox's container: an adopted one has no label of it."""
    return [name.split(".sandbox.")[1].split(".")[0] for name in names if ".sandbox." in name]
