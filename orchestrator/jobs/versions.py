"""The versions of all data that other releases may read or write: one number for all of them.

Specifications, records, journals, answers, results and bundles are read by other processes than
those that wrote them, possibly of another release. So

- requests for work are read strictly: a worker runs a job only when it knows everything that the
  job uses, and otherwise leaves it unchanged for other workers, without using an attempt;
- reports of work are read leniently: a reader ignores fields, values and kinds of events that it
  does not know (`understood.py`);
- the scripts of several releases work on the same keys: a missing field has its default, an unknown
  one is left unchanged;
- a job is written in the lowest version that has what it uses, in the layout of Redis that the
  releases before this one read. A release that moves data reads the new layout first, and only the
  next one writes it.

A release that adds or changes a field of a specification, or the layout of Redis, increments
`WIRE_NEWEST`, enters the field in `ADDED`, and names the last commit of the version before in
`tests/faults/releases.toml`. `tests/unit/wire` fails until it does. This includes all data that a
job's conversation is resumed from: its journal, its checkpoints, its snapshot's archive. States of
a job are never added.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

WIRE_OLDEST = 1
"""The oldest version that this release reads."""
WIRE_NEWEST = 3
"""The newest version that this release reads. Releases of version 1 have two layouts of Redis
without a mark, and raise a job to 2 that they cannot read; version 2 reads both. With version 3 a
job carries its caller's policy, which workers of earlier releases would not check."""

ADDED: Mapping[int, frozenset[str]] = MappingProxyType(
    {
        2: frozenset(),
        3: frozenset(
            {
                "caller_policy",
                "inherit",
                "limits.max_calls",
                "limits.max_wait_seconds",
                "reuse",
                "script",
                "script_inputs",
            }
        ),
    }
)
"""Version -> the fields of a specification that it added or changed, those of its limits as
`limits.pids`; a field within one of them has the version of that field. All other fields are of
version 1."""


def find_version(stored: Mapping[str, Any]) -> int:
    """Return the lowest version that has all fields of a specification.

    Args:
        stored: The specification without the fields that have their default.
    """
    used = set(stored)
    used.update(
        f"{name}.{inner}"
        for name, value in stored.items()
        if isinstance(value, dict)
        for inner in value
    )
    return max((version for version, added in ADDED.items() if added & used), default=1)
