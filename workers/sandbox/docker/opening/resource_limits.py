"""Whether an engine keeps the limits that a container is created with.

Some only warn, or not even that: Podman without root and with control groups of version 1 answers
`GET /info` with all limits, creates containers without warnings, and runs them without limits. What
is left of a container's limits is in its own description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanout.workers.sandbox.errors import EngineUnfit

_OF_ENGINES = {"MemoryLimit": "memory_bytes", "PidsLimit": "pids", "CpuCfsQuota": "cpus"}
"""The limits of jobs by their names in `GET /info`."""
_OF_CONTAINERS = {"Memory": "memory_bytes", "PidsLimit": "pids"}
"""The limits of jobs by their names in the configuration of a container; a steward has these."""


def require_limits(host: str, info: Mapping[str, Any], created: Mapping[str, Any]) -> None:
    """Refuse an engine that does not keep limits.

    Args:
        host: The engine's address.
        info: Its answer to `GET /info`. What it does not mention counts as kept.
        created: The `HostConfig` of a container that was created with these limits.

    Raises:
        EngineUnfit: The message names the limits, and what such an engine needs.
    """
    lost = {limit for name, limit in _OF_ENGINES.items() if info.get(name) is False}
    lost |= {limit for name, limit in _OF_CONTAINERS.items() if not created.get(name)}
    if lost:
        raise EngineUnfit(
            f"The Docker engine at {host} runs containers without the limits "
            f"{', '.join(sorted(lost))}: a rootless engine needs control groups of version 2, "
            "with their controllers delegated to its user."
        )
