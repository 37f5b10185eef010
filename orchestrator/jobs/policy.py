"""The admission policy: the limits of concurrent jobs over all workers, and the shares of tenants.

Workers register with their policy, and the ledger keeps that of the worker that started last. So an
installation has one policy, which also applies to parents without these settings.
"""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, PositiveInt, model_validator

from .spec import AgentName, WireModel
from .understood import read_understood

TREE_JOBS = 64
"""The default limit of a tree's concurrent jobs, which fits the workers of several hosts."""


class TenantShare(WireModel):
    """The share of one tenant in the workers."""

    weight: float = Field(default=1, ge=0.01, le=1000)
    """How often its turns come while others wait: 3 is three times as often as 1."""
    jobs: int | None = Field(default=None, ge=1)
    """The maximum number of its concurrent jobs; None: that of `tenant_jobs`."""
    kept_jobs: int | None = Field(default=None, ge=1)
    """The most jobs of its callers that are stored, in any state; None: the limit of every tenant.
    """
    kept_bytes: int | None = Field(default=None, ge=1)
    """The most bytes of these jobs; None: the limit of every tenant."""
    retention_seconds: float | None = Field(default=None, ge=1)
    """How long its jobs are kept after their end; None: as long as those of every tenant."""


TENANT_PART, OWNER_PART = 0.5, 0.25
"""The parts of Redis's `maxmemory` that the jobs of one tenant, and of one owner, may take."""


class StorageShares(WireModel):
    """The thresholds of a Redis that fills up, and how much callers may store in it.

    The scripts have the same defaults (`STORAGE` in `common.lua`), for an installation whose
    workers have registered no others.
    """

    warn_at: float = Field(default=0.8, gt=0, le=1)
    """The part of Redis's `maxmemory` from which on people are warned."""
    accept_at: float = Field(default=0.85, gt=0, le=1)
    """The part from which on the journals of ended jobs are shortened. After a refusal, new jobs
    are accepted again below it."""
    refuse_at: float = Field(default=0.9, gt=0, le=1)
    """The part from which on new jobs are refused, so that running jobs have room."""
    tenant_jobs: int = Field(default=50_000, ge=1)
    """The most stored jobs of a tenant's callers: queued, running and ended ones."""
    owner_jobs: int = Field(default=20_000, ge=1)
    """The most stored jobs of one owner within a tenant."""
    tenant_bytes: int | None = Field(default=None, ge=1)
    """The most bytes of the jobs of a tenant's callers: specifications, results and journals.
    Unset: half of Redis's `maxmemory`."""
    owner_bytes: int | None = Field(default=None, ge=1)
    """The most bytes of the jobs of one owner within a tenant; unset: a quarter of `maxmemory`."""

    def bytes_of_tenant(self, limit_bytes: int) -> int | None:
        """Return how many bytes one tenant may have stored; None: no limit.

        Args:
            limit_bytes: Redis's `maxmemory`; 0: it has none.
        """
        return self.tenant_bytes or int(TENANT_PART * limit_bytes) or None

    def bytes_of_owner(self, limit_bytes: int) -> int | None:
        """Return how many bytes one owner may have stored; None: no limit.

        Args:
            limit_bytes: Redis's `maxmemory`; 0: it has none.
        """
        return self.owner_bytes or int(OWNER_PART * limit_bytes) or None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.warn_at <= self.accept_at <= self.refuse_at:
            raise ValueError(
                "warn_at, accept_at and refuse_at follow each other: for example 0.8, 0.85, 0.9"
            )
        return self


class AdmissionPolicy(WireModel):
    """The limits and shares by which queued jobs are admitted."""

    tree_jobs: int = Field(default=TREE_JOBS, ge=1)
    tenant_jobs: int | None = Field(default=None, ge=1)
    """The maximum number of concurrent jobs of a tenant without its own; None: no limit."""
    tenants: dict[str, TenantShare] = Field(default_factory=dict)
    agents: dict[AgentName, PositiveInt] = Field(default_factory=dict)
    """Agent -> the maximum number of its concurrent jobs; other agents have no limit."""
    storage: StorageShares = StorageShares()
    approvers: tuple[str, ...] = ()
    """Who may answer approvals, as `Ledger.answer` records them; empty: everybody."""

    def tenant_limit(self, tenant: str) -> int | None:
        """Return the maximum number of concurrent jobs of a tenant; None: no limit."""
        share = self.tenants.get(tenant)
        return (share.jobs if share else None) or self.tenant_jobs

    @classmethod
    def read(cls, stored: str) -> Self:
        """Return a stored policy, without what only a newer release understands.

        Args:
            stored: The JSON that `stored` returned.
        """
        policy, _ = read_understood(cls, json.loads(stored), "The admission policy")
        return policy

    def stored(self) -> str:
        """Return the policy as JSON; equal policies give equal texts."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True)
