"""Prepared environments, as the rest of the worker asks a provider for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fanout.orchestrator.jobs.spec import Limits

from .credential import Credential


@dataclass(frozen=True, kw_only=True)
class SetupStep:
    """Commands that are run in one sandbox, one after the other."""

    source: str
    """Whose they are, for people."""
    commands: tuple[str, ...]
    timeout_seconds: float
    """For all of them together."""
    network: tuple[str, ...] = ()
    """The hosts that they may reach."""
    denied: tuple[str, ...] = ()
    """The hosts that they ask for, and may not reach."""
    credentials: tuple[Credential, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """An environment that a job wants, and how it is made where it is missing."""

    key: str
    """Identifies it: 64 hexadecimal digits."""
    image: str
    limits: Limits
    """Of the sandbox in which it is made; `network` is each step's own."""
    steps: tuple[SetupStep, ...]
    snapshot: str | None = None
    layers: tuple[str, ...] = ()
    """What it is made from, as of a `SandboxSpec`."""
    record: Mapping[str, str] = field(default_factory=dict)
    """What `fanout environment ls` shows of it."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord:
    """An environment that an engine has."""

    key: str
    bytes: int
    digest: str
    """The SHA-256 of its archive."""
    made_at: int
    used_at: int
    """In seconds since the epoch."""
    in_use: bool
    """Whether a job has files on it."""
    record: Mapping[str, str]
    """See `EnvironmentRequest`."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> EnvironmentRecord:
        """Return what a steward says of one."""
        own = {"key", "bytes", "digest", "made_at", "used_at", "in_use"}
        return cls(
            key=str(answer["key"]),
            bytes=int(answer["bytes"]),
            digest=str(answer["digest"]),
            made_at=int(answer["made_at"]),
            used_at=int(answer["used_at"]),
            in_use=bool(answer["in_use"]),
            record={str(name): str(answer[name]) for name in answer if name not in own},
        )


class Environments(Protocol):
    """The prepared environments of a provider."""

    async def image_id(self, image: str) -> str:
        """Return what identifies an image's content.

        Raises:
            ImageMissing: There is no such image.
            SandboxFailure: The engine does not answer.
        """

    async def has(self, key: str) -> bool:
        """Return whether an environment is prepared here.

        Raises:
            SandboxFailure: The engine does not answer.
        """

    async def ensure(self, request: EnvironmentRequest) -> bool:
        """Return when an environment is prepared here; whether it was made now.

        However many ask for it, on however many workers of the engine, it is made once. It is given
        up when the last one that waits in this process is cancelled.

        Raises:
            SetupFailed: One of its commands failed, or took too long.
            SandboxFailure: See `workers.sandbox.errors`.
        """

    async def list(self) -> Sequence[EnvironmentRecord]:
        """Return all, those first that were used last.

        Raises:
            SandboxFailure: The engine does not answer.
        """

    async def remove(
        self,
        keys: Sequence[str] | None = None,
        *,
        unused_seconds: float = 0.0,
        most_bytes: int = 0,
    ) -> Sequence[str]:
        """Remove environments that no job uses; return their keys.

        Args:
            keys: These. None: those that were not used for so long, and the longest unused ones of
                what is more than so many bytes.
            unused_seconds: See `keys`.
            most_bytes: See `keys`.

        Raises:
            SandboxFailure: The engine does not answer.
        """
