"""What keys of the service may choose for their jobs, in words."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fanout.orchestrator.configuration.api_settings import CallerSettings, Scope
from fanout.orchestrator.jobs.store.api_keys import ApiKey


def may_choose(record: ApiKey, callers: CallerSettings) -> str:
    """Return what a key may choose for its jobs, in words."""
    policy = callers.policy_of(record.tenant, record.name, record.made_with)
    if policy.anything:
        before = " (made before there were lists)" if record.policy is None else ""
        return f"anything{before}"
    limits = policy.limits.model_dump(exclude_none=True)
    hosts = limits.pop("network", ())
    numbers = [f"{name}={value:g}" for name, value in limits.items()]
    lists = {
        "models": policy.models,
        "verify": policy.verify,
        "hosts": hosts if hosts != "none" else (),
        "limits": numbers,
    }
    parts = [f"{name}: {', '.join(entries)}" for name, entries in lists.items() if entries]
    return "; ".join(parts) or "what agent definitions say"


def unbound_names(records: Sequence[ApiKey], callers: CallerSettings) -> list[str]:
    """Return the names of keys that work, may submit jobs, and choose anything for them."""
    now = time.time()
    return [
        one.name
        for one in records
        if one.works(now)
        and Scope.SUBMIT in one.scopes
        and callers.policy_of(one.tenant, one.name, one.made_with).anything
    ]
