"""Failures of a sandbox, as opposed to failures of the command in it.

SandboxFailure (orchestrator.jobs.failures)
├── EngineUnavailable     the Docker engine does not answer                retryable
│   └── EngineForbidden   this user may not use it                         retryable
├── SandboxDied           the container or its resident has ended          retryable
├── SandboxStartFailed    the engine refused or failed to start it         retryable
├── ImageMissing          the image is not on the engine
├── SnapshotUnusable      the archive is damaged or leaves its root
└── DiskLimitExceeded     the job wrote more than its limit
"""

from __future__ import annotations

from orchestrator.jobs.failures import SandboxFailure


class EngineUnavailable(SandboxFailure):
    """The Docker engine does not answer."""

    retryable = True


class EngineForbidden(EngineUnavailable):
    """This user has no right to the Docker engine's socket."""


class SandboxDied(SandboxFailure):
    """The container, or the resident process in it, has ended."""

    retryable = True


class SandboxStartFailed(SandboxFailure):
    """The engine could not start the container."""

    retryable = True


class ImageMissing(SandboxFailure):
    """The image is not on the engine; the message names the command that builds it."""


class SnapshotUnusable(SandboxFailure):
    """The snapshot's archive is damaged or has a path outside the workspace."""


class DiskLimitExceeded(SandboxFailure):
    """The job's workspace exceeds its disk limit; the message names the limit."""
