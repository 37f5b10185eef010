"""The admission policy.

How many jobs of what run at once, over all workers, and whose turn comes how often.

Workers bring it along when they register, and the ledger keeps that of the worker that started
last. So there is one for the installation, and a parent that has none of the settings cannot exceed
them.
"""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, PositiveInt

from orchestrator.jobs.spec import AgentName, WireModel

TREE_JOBS = 64
"""Jobs of one tree at once, where no setting says otherwise: the workers of several hosts."""


class TenantShare(WireModel):
    """What one tenant gets of the workers."""

    weight: float = Field(default=1, ge=0.01, le=1000)
    """How often its turn comes while others wait: 3 is three times as often as 1."""
    jobs: int | None = Field(default=None, ge=1)
    """Its jobs at once; None: as many as any tenant's."""


class AdmissionPolicy(WireModel):
    """The limits and shares by which waiting jobs are let in."""

    tree_jobs: int = Field(default=TREE_JOBS, ge=1)
    tenant_jobs: int | None = Field(default=None, ge=1)
    """Of a tenant that has no number of its own; None: no limit."""
    tenants: dict[str, TenantShare] = Field(default_factory=dict)
    agents: dict[AgentName, PositiveInt] = Field(default_factory=dict)
    """How many jobs of an agent run at once; one that is not named has no limit."""

    def tenant_limit(self, tenant: str) -> int | None:
        """How many jobs of a tenant run at once; None: no limit."""
        share = self.tenants.get(tenant)
        return (share.jobs if share else None) or self.tenant_jobs

    @classmethod
    def read(cls, stored: str) -> Self:
        """The policy from what the ledger keeps.

        A newer release's may hold more, which is passed over.
        """
        data = {
            name: value for name, value in json.loads(stored).items() if name in cls.model_fields
        }
        shares = {
            tenant: {
                name: value for name, value in share.items() if name in TenantShare.model_fields
            }
            for tenant, share in data.get("tenants", {}).items()
        }
        return cls.model_validate({**data, "tenants": shares})

    def stored(self) -> str:
        """As the ledger keeps it: the same text for the same policy."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True)
