"""Failures of a sandbox, as opposed to failures of the command in it.

SandboxFailure (orchestrator.jobs.failures)
├── EngineUnavailable     the Docker engine does not answer                retryable
├── SandboxDied           the container or its resident has ended          retryable
├── SandboxStartFailed    the engine refused or failed to start it         retryable
├── ImageMissing          the image is not on the engine
├── ChangesNotCollected   what the job wrote cannot be read within its limits
├── SnapshotUnusable      the archive is damaged or leaves its root
└── DiskLimitExceeded     the job wrote more than its limit
"""

from __future__ import annotations

from orchestrator.jobs.failures import SandboxFailure


class EngineUnavailable(SandboxFailure):
    """The Docker engine does not answer."""

    retryable = True


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


class ChangesNotCollected(SandboxFailure):
    """What the job wrote cannot be read within the limits of a collection; the message says why."""
