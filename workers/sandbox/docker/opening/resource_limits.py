"""Whether an engine keeps the limits that a container is created with.

Some lose them without a word: Podman without root and with control groups of version 1 answers
`GET /info` with all limits, creates containers without warnings, and runs them without limits; with
version 2, it denies there what it keeps. What is left of them is in a container's description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanout.workers.sandbox.errors import EngineUnfit

_LIMITS = {"Memory": "memory_bytes", "PidsLimit": "pids"}
"""Those that stewards have too, by their names in a container's configuration. A limit of the
processor that an engine cannot keep is an error of the container's start."""


def require_limits(host: str, created: Mapping[str, Any]) -> None:
    """Refuse an engine that does not keep limits.

    Args:
        host: The engine's address.
        created: The `HostConfig` of a container that was created with these limits.

    Raises:
        EngineUnfit: The message names the limits, and what such an engine needs.
    """
    lost = [limit for name, limit in _LIMITS.items() if not created.get(name)]
    if lost:
        raise EngineUnfit(
            f"The Docker engine at {host} runs containers without the limits "
            f"{', '.join(lost)}: a rootless engine needs control groups of version 2, "
            "with their controllers delegated to its user."
        )
