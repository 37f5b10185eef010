"""A sandbox's container: what it is made from, and what the worker holds for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanout.orchestrator.jobs.spec import Limits
from fanout.workers.sandbox.docker.container_config import named_hosts
from fanout.workers.sandbox.docker.steward_client import Prepared
from fanout.workers.sandbox.egress.proxy import Egress
from fanout.workers.sandbox.errors import DiskLimitExceeded, SandboxDied
from fanout.workers.sandbox.protocol import SandboxSpec
from fanout.workers.sandbox.resident.client import ResidentClient

_SOME_HOST = ("host.invalid",)
"""A container has no network of its own: only whether there are hosts is part of it."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All of it. What is not in here is given to a sandbox when a job has it."""

    image: str
    limits: Limits
    """Those that the container keeps."""
    has_credentials: bool
    labels: tuple[tuple[str, str], ...]
    """Those that its container has besides our own."""
    snapshot: str | None
    layers: tuple[str, ...]

    @classmethod
    def of(cls, spec: SandboxSpec) -> Shape:
        """Return the shape of a sandbox."""
        limits = spec.limits
        return cls(
            image=spec.image,
            limits=Limits(
                cpus=limits.cpus,
                memory_bytes=limits.memory_bytes,
                pids=limits.pids,
                disk_bytes=limits.disk_bytes,
                network=_SOME_HOST if named_hosts(limits) else "none",
            ),
            has_credentials=bool(spec.credentials),
            labels=tuple(sorted(spec.labels.items())),
            snapshot=spec.snapshot,
            layers=spec.layers,
        )


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
