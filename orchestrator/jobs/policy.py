"""The admission policy: the limits of concurrent jobs over all workers, and the shares of tenants.

Workers register with their policy, and the ledger keeps that of the worker that started last. So an
installation has one policy, which holds for parents without these settings too.
"""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, PositiveInt

from fanout.orchestrator.jobs.spec import AgentName, WireModel

TREE_JOBS = 64
"""The default of a tree's concurrent jobs: as many as the workers of several hosts run."""


class TenantShare(WireModel):
    """The share of one tenant in the workers."""

    weight: float = Field(default=1, ge=0.01, le=1000)
    """The frequency of its turns while others wait: 3 is three times as often as 1."""
    jobs: int | None = Field(default=None, ge=1)
    """The maximum number of its concurrent jobs; None: that of `tenant_jobs`."""


class AdmissionPolicy(WireModel):
    """The limits and shares by which queued jobs are admitted."""

    tree_jobs: int = Field(default=TREE_JOBS, ge=1)
    tenant_jobs: int | None = Field(default=None, ge=1)
    """The maximum number of concurrent jobs of a tenant without its own; None: no limit."""
    tenants: dict[str, TenantShare] = Field(default_factory=dict)
    agents: dict[AgentName, PositiveInt] = Field(default_factory=dict)
    """Agent -> the maximum number of its concurrent jobs; other agents have no limit."""
    approvers: tuple[str, ...] = ()
    """Who may answer approvals, as `Ledger.answer` records them; empty: everybody."""

    def tenant_limit(self, tenant: str) -> int | None:
        """Return the maximum number of concurrent jobs of a tenant; None: no limit."""
        share = self.tenants.get(tenant)
        return (share.jobs if share else None) or self.tenant_jobs

    @classmethod
    def read(cls, stored: str) -> Self:
        """Return a stored policy; unknown fields, of a newer release, are ignored.

        Args:
            stored: The JSON that `stored` returned.
        """
        return cls.model_validate_json(stored, extra="ignore")

    def stored(self) -> str:
        """Return the policy as JSON; equal policies give equal texts."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True)
