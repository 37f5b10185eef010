"""The versions of what crosses a boundary between releases: one number for all of it.

Specifications, records, journals, answers, results and bundles are read by other processes than
wrote them, and these may be of another release. So

- what asks for work is read strictly: a worker takes a job only when it knows everything that the
  job uses;
- what tells of work is read leniently: a reader passes over fields and kinds of events that it does
  not know;
- the scripts of several releases work on the same keys: what is missing is its default, what is not
  known is left alone.

A release that adds something, or gives a new form to something, raises `WIRE_NEWEST` and enters it
below; `tests/unit/wire` fails until it does. Whatever a job's conversation is continued from
counts, too: its journal, its checkpoints, its snapshot's archive. States of a job are never added
to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

WIRE_OLDEST = 1
"""The oldest version that this release reads."""
WIRE_NEWEST = 1
"""The newest version that this release reads, and the one in which it writes."""

ADDED: Mapping[int, frozenset[str]] = MappingProxyType({})
"""Version -> the fields of a specification that it added or gave a new form, with those of its
limits as `limits.pids`. What is not named is of version 1."""


class Reader(Protocol):
    """Whoever says which versions it reads."""

    @property
    def wire_oldest(self) -> int:
        """The oldest version that it reads."""

    @property
    def wire_newest(self) -> int:
        """The newest version that it reads."""


def version_of(stored: Mapping[str, Any]) -> int:
    """The lowest version whose workers know all that a specification uses, which has no defaults in it."""
    used = set(stored)
    used.update(
        f"{name}.{inner}"
        for name, value in stored.items()
        if isinstance(value, dict)
        for inner in value
    )
    return max((version for version, added in ADDED.items() if added & used), default=1)


def awaited_worker(wire: int, workers: Collection[Reader]) -> str | None:
    """Which worker a job waits for, in words; None when one of those that live understands it."""
    if any(worker.wire_oldest <= wire <= worker.wire_newest for worker in workers):
        return None
    known = " and ".join(
        sorted({f"{worker.wire_oldest} to {worker.wire_newest}" for worker in workers})
    )
    age = "a newer" if any(worker.wire_newest < wire for worker in workers) else "an older"
    return f"{age} worker: it needs wire version {wire}, those that live know {known}"
