"""What a sandbox's container and its files are made from: equal shapes, equal sandboxes."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.orchestrator.jobs.spec import Limits
from fanout.workers.sandbox.docker.container_config import named_hosts
from fanout.workers.sandbox.protocol import SandboxSpec

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
