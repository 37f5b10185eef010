"""The settings of Redis's storage: its thresholds, the shares of callers, and early retention."""

from __future__ import annotations

from pydantic import Field

from ..jobs.policy import StorageShares


class StorageSettings(StorageShares):
    """The amount and the time of what Redis stores, and the shares of callers."""

    full_wait_seconds: float = Field(default=3600, ge=1)
    """How long a job waits in the queue after its attempt was released because Redis had no memory
    left; then it fails."""
    max_bytes: int | None = Field(default=None, ge=1)
    """The most bytes of all jobs in Redis; above it, the trees that ended first are deleted before
    their time. Unset: no limit but Redis's own."""
    min_kept_seconds: float = Field(default=3600, ge=1)
    """The shortest time that a job is kept after the end of its tree, whatever its size."""

    def shares(self) -> StorageShares:
        """Return the shares that the ledger enforces."""
        return StorageShares(**self.model_dump(include=set(StorageShares.model_fields)))
