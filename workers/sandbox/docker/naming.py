"""Names and labels of what we create on an engine, by which a reaper finds it."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["sandbox", "steward", "network", "store", "shared", "code", "workspace", "output"]

INSTALLATION, WORKER, ROLE = "fanout.installation", "fanout.worker", "fanout.role"
JOB, ATTEMPT, EXPIRES = "fanout.job", "fanout.attempt", "fanout.expires"
WARM = "fanout.warm"
"""The id of a sandbox that was started ahead; the steward knows whether a job has adopted it."""
PROCESS = "fanout.process"

COMMAND = "command-"
"""The beginning of the names of workers that a command of a person stands for: they are not
registered, and what they have runs no longer than they do."""

START_SECONDS = 120.0
"""A container that was not started within this time after its creation never will be: its worker
died in between."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Names:
    """The names and labels of one worker process.

    All workers of one installation share volumes and remove each other's leftovers.
    """

    installation: str
    """The id that the ledger keeps: two ledgers never have the same one."""
    worker: str
    process: str = field(default_factory=lambda: secrets.token_hex(4))
    """Distinguishes this process from a former one with the same worker name."""

    def __post_init__(self) -> None:
        """Check the installation's id, which becomes part of names on the engine.

        Raises:
            ValueError: it has characters that the engine rejects.
        """
        if not _NAME.fullmatch(self.installation):
            raise ValueError("an installation's id is up to 63 letters, digits, '-' and '_'")

    @property
    def store(self) -> str:
        """The volume that all stewards of the installation share."""
        return f"fanout-{self.installation}"

    @property
    def shared(self) -> str:
        """The volume that shows the stewards' volume, with the disks that stewards mount on it."""
        return f"{self.store}.shared"

    def code(self, identity: str) -> str:
        """The volume with one version of the resident's code."""
        return f"{self.store}.code.{identity}"

    def workspace(self, job_id: str) -> str:
        """The volume that is a job's workspace."""
        return f"{self.store}.job.{job_id}"

    def output(self, job_id: str) -> str:
        """The volume with the whole outputs of a job's commands."""
        return f"{self.store}.output.{job_id}"

    def of_job(self, job_id: str) -> tuple[str, ...]:
        """The volumes of a job, which its container mounts."""
        return self.workspace(job_id), self.output(job_id)

    def container(self, role: Role, what: str = "") -> str:
        """Return a new container name."""
        parts = (self.store, role, what, secrets.token_hex(4))
        return ".".join(part for part in parts if part)

    def labels(
        self,
        role: Role,
        job_id: str | None = None,
        attempt: int | None = None,
        *,
        warm: str | None = None,
    ) -> dict[str, str]:
        """Return the labels of a container or a volume: a job's, a warm sandbox's, or neither's."""
        labels = {
            INSTALLATION: self.installation,
            WORKER: self.worker,
            PROCESS: self.process,
            ROLE: role,
            EXPIRES: str(int(time.time() + START_SECONDS)),
        }
        if job_id is not None:
            labels[JOB] = job_id
        if attempt is not None:
            labels[ATTEMPT] = str(attempt)
        if warm is not None:
            labels[WARM] = warm
        return labels

    def of_warm(self, warm: str) -> tuple[str, str]:
        """The labels of the container of a sandbox that was started ahead."""
        return self.of_installation, f"{WARM}={warm}"

    @property
    def of_installation(self) -> str:
        """The label that everything of the installation has."""
        return f"{INSTALLATION}={self.installation}"
