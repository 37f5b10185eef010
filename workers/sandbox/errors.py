"""Failures of a sandbox, as opposed to failures of the command in it.

SandboxFailure (orchestrator.jobs.failures)
├── HostFault             the host failed, not the job: no attempt is used up
├── EngineUnavailable     the Docker engine does not answer                retryable
│   └── EngineForbidden   this user may not use it                         retryable
├── SandboxDied           the container or its resident has ended          retryable
├── SandboxStartFailed    the engine refused or failed to start it         retryable
├── SandboxNotSecluded    its commands could take over its own process
├── EngineUnfit           the engine loses the limits of sandboxes, or their runtime
├── ImageMissing          the image is not on the engine
├── ImageUnfit            the image lacks what sandboxes need
├── FilesMissing          nothing is left of the job here
├── ChangesNotCollected   what the job wrote cannot be read within its limits
│   └── ChangesUnreadable a second try may read it
├── SnapshotUnusable      the archive is damaged or leaves its root
├── DiskLimitExceeded     the job wrote more than its limit
├── EnvironmentMissing    a prepared environment was removed meanwhile     retryable
└── EnvironmentsUnfit     the engine cannot have prepared environments
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fanout.orchestrator.jobs.failures import JobFailure, SandboxFailure


class HostFault(SandboxFailure):
    """The host of an attempt failed, not its job: the job is given back.

    Args:
        why: A sentence that says what is wrong with the host.
        cause: What the attempt met; it ends the job that was given back too often.
    """

    retryable = True

    def __init__(self, why: str, cause: JobFailure | None = None) -> None:
        super().__init__(why)
        self.cause = cause


class EngineUnavailable(SandboxFailure):
    """The Docker engine does not answer."""

    retryable = True
    depends_on_host = True


class EngineForbidden(EngineUnavailable):
    """This user has no right to the Docker engine's socket."""


class EngineUnfit(SandboxFailure):
    """The engine loses the limits of sandboxes or the runtime that a setting names for them."""

    depends_on_host = True


class SandboxDied(SandboxFailure):
    """The container, or the resident process in it, has ended."""

    retryable = True
    depends_on_host = True


class SandboxStartFailed(SandboxFailure):
    """The engine could not start the container."""

    retryable = True
    depends_on_host = True


class SandboxNotSecluded(SandboxFailure):
    """The commands of a sandbox could take over its resident: the image or the runtime is unfit."""

    depends_on_host = True


class ImageMissing(SandboxFailure):
    """The image is not on the engine; the message says what to do about it."""

    depends_on_host = True
    is_buildable = False
    """Whether it is one that `fanout images build` builds."""


class ImageUnfit(SandboxFailure):
    """The image lacks what sandboxes need; the message says what."""

    depends_on_host = True


class SnapshotUnusable(SandboxFailure):
    """A snapshot's archive or a layer is damaged, or has a path outside the workspace."""


class DiskLimitExceeded(SandboxFailure):
    """The job's workspace exceeds its disk limit; the message names the limit."""


class EnvironmentMissing(SandboxFailure):
    """A prepared environment was removed between its preparation and its use."""

    retryable = True


class EnvironmentsUnfit(SandboxFailure):
    """The engine cannot mount prepared environments below the files of jobs."""

    depends_on_host = True


class FilesMissing(SandboxFailure):
    """The files of a job are not on this host any more."""


class ChangesNotCollected(SandboxFailure):
    """What the job wrote cannot be read within the limits of a collection; the message says why."""


class ChangesUnreadable(ChangesNotCollected):
    """They could not be read this time; another try may succeed."""


NOT_COLLECTED = {"CollectionFailed": ChangesNotCollected, "Unreadable": ChangesUnreadable}
"""The failures of a collection, by the steward's names."""


def unreachable(error: Exception, host: str) -> EngineUnavailable:
    """Return the failure to reach an engine, with what a person can do about it.

    Args:
        error: what the HTTP library raised.
        host: the engine's address.
    """
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        return EngineForbidden(
            f"The Docker engine at {host} is not open to this user: "
            "join its group (usermod -aG docker USER), then log in again."
        )
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return EngineUnavailable(
            f"The Docker engine at {host} is there, but does not answer: restart Docker."
        )
    return EngineUnavailable(f"No Docker engine answers at {host}: start Docker.")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those below it, which HTTP libraries put into its arguments, too."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__, *found.args]
