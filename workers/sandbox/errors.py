"""When the sandbox fails, not the command in it.

SandboxFailure (orchestrator.jobs.failures)
├── EngineUnavailable     the Docker engine does not answer                retryable
├── SandboxDied           the container or its resident is gone            retryable
├── SandboxStartFailed    the engine refused or could not start it         retryable
├── ImageMissing          the image is not on the engine
├── SnapshotUnusable      the archive is damaged or leaves its root
└── DiskLimitExceeded     the job wrote more than it may
"""

from __future__ import annotations

from orchestrator.jobs.failures import SandboxFailure


class EngineUnavailable(SandboxFailure):
    """The Docker engine does not answer."""

    retryable = True


class SandboxDied(SandboxFailure):
    """The container or the process in it that carries out requests is gone."""

    retryable = True


class SandboxStartFailed(SandboxFailure):
    """The engine could not start the container."""

    retryable = True


class ImageMissing(SandboxFailure):
    """The image is not on the engine; the message says how to build it."""


class SnapshotUnusable(SandboxFailure):
    """The snapshot's archive is damaged or has a path outside the workspace."""


class DiskLimitExceeded(SandboxFailure):
    """The job's workspace grew over its limit; the message names the limit."""
