"""A sandbox's container, and what the worker holds for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanout.workers.sandbox.docker.steward.prepared import Prepared
from fanout.workers.sandbox.egress.proxy import Egress
from fanout.workers.sandbox.errors import DiskLimitExceeded, SandboxDied
from fanout.workers.sandbox.resident.client import ResidentClient


class LimitedClient(ResidentClient):
    """A resident's client that reports an exceeded limit when its sandbox was ended for it."""

    exceeded: DiskLimitExceeded | None = None

    async def request(self, *arguments: Any, **options: Any) -> tuple[dict[str, Any], bytes]:
        """See `ResidentClient.request`.

        Raises:
            DiskLimitExceeded: the sandbox was ended for it.
            SandboxFailure: see `ResidentClient.request`.
        """
        try:
            return await super().request(*arguments, **options)
        except SandboxDied:
            if self.exceeded is not None:
                raise self.exceeded from None
            raise


@dataclass
class Container:
    """A container that was created, and maybe started."""

    name: str
    """By which the engine finds it: once it is created its id, since an adoption renames it."""
    volumes: tuple[str, ...]
    """What it mounts of the files that are its job's alone."""
    network: str
    client: LimitedClient | None = None
    egress: Egress | None = None
    is_closed: bool = False


@dataclass(frozen=True)
class Started:
    """A container that is ready, and the files in it."""

    container: Container
    client: LimitedClient
    prepared: Prepared
