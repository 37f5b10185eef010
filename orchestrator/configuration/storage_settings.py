"""The settings of what Redis keeps: its marks, the shares of callers, and early retention."""

from __future__ import annotations

from pydantic import Field

from fanout.orchestrator.jobs.policy import StorageShares


class StorageSettings(StorageShares):
    """What Redis keeps, for how long, and for whom."""

    full_wait_seconds: float = Field(default=3600, ge=1)
    """How long a job waits in the queue whose attempt was given back because Redis had no memory
    left; then it ends as failed."""
    max_bytes: int | None = Field(default=None, ge=1)
    """Bytes of all jobs that Redis keeps; of more, the trees that ended first are deleted before
    their time. Unset: no limit but Redis's own."""
    min_kept_seconds: float = Field(default=3600, ge=1)
    """After the end of its tree a job is kept at least for so long, whatever it takes."""

    def shares(self) -> StorageShares:
        """Return what the ledger enforces."""
        return StorageShares(**self.model_dump(include=set(StorageShares.model_fields)))
