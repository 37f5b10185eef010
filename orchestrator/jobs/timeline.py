"""When a job was in which phase, and what became of its changes: what a view of a tree shows.

A job's record has it, so that a tree of hundreds of jobs is shown without reading their journals.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from .spec import WireModel


class PhaseKind(StrEnum):
    """What a job does for some time."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """It waits for children, for a person, or for an unavailable service."""
    VERIFYING = "verifying"
    """A verification command runs."""
    LANDING = "landing"
    """The changes of children are merged into its files."""


BEGUN = frozenset({"queued", "running", "waiting", "landing"})
"""The entries of a timeline that begin a phase of their name."""


class Phase(WireModel):
    """A part of a job's time. Times are seconds since the epoch, by the Redis server's clock."""

    kind: PhaseKind
    begin: float
    end: float | None = None
    """The end of the phase; None: it has not ended."""
    exit_code: int | None = None
    """The exit code of a verification, which failed if this is not 0."""


class LandedChanges(WireModel):
    """What became of a job's changes in the files of its parent."""

    outcome: str
    """`in`, `out` or `sent back`."""
    why: str = ""
    """Why they are not all in the parent's files: a sentence, or the first conflict."""
    is_unmerged: bool = False
    """Whether a part of them was not merged anywhere."""
    at: float = Field(default=0)
    """When it was decided, in seconds since the epoch."""


class _Entry:
    """An entry of a stored timeline: `name:milliseconds`, and two values of a verification."""

    def __init__(self, text: str) -> None:
        self.name, at, *values = text.split(":")
        self.at = int(at) / 1000
        self.values = [int(float(value)) for value in values]


def read_phases(
    stored: str,
    *,
    submitted_at: float,
    started_at: float | None,
    finished_at: float | None,
    verifying_since: float | None = None,
) -> tuple[Phase, ...]:
    """Return the phases of a job, oldest first; they follow each other without a gap.

    Args:
        stored: The timeline, as `mark` in common.lua writes it; empty of a job that an earlier
            release ran: it is known then when it began and ended.
        submitted_at: When the job was submitted.
        started_at: When its first attempt began.
        finished_at: When it ended.
        verifying_since: When the verification began that runs now; the timeline has only those that
            have ended. What the timeline says of a later time counts.
    """
    phases = [Phase(kind=PhaseKind.QUEUED, begin=submitted_at)]

    def begin(kind: PhaseKind, at: float) -> None:
        last = phases[-1]
        if kind is last.kind:
            return
        at = max(at, last.begin)
        phases[-1] = last.model_copy(update={"end": at})
        phases.append(Phase(kind=kind, begin=at))

    entries = list(_entries(stored))
    if started_at is not None and (not entries or entries[0].at > started_at):
        begin(PhaseKind.RUNNING, started_at)
    for entry in entries:
        if entry.name == "verify" and len(entry.values) == 2:  # noqa: PLR2004 - seconds, exit code
            interrupted = phases[-1].kind
            milliseconds, exit_code = entry.values
            begin(PhaseKind.VERIFYING, entry.at - milliseconds / 1000)
            phases[-1] = phases[-1].model_copy(update={"exit_code": exit_code})
            begin(interrupted, entry.at)
        elif entry.name == "landed" and phases[-1].kind is PhaseKind.LANDING:
            begin(PhaseKind.RUNNING, entry.at)
        elif entry.name in BEGUN:
            begin(PhaseKind(entry.name), entry.at)
    if verifying_since is not None and verifying_since >= phases[-1].begin:
        begin(PhaseKind.VERIFYING, verifying_since)
    if finished_at is not None:
        phases[-1] = phases[-1].model_copy(update={"end": max(finished_at, phases[-1].begin)})
    return tuple(one for one in phases if one.end is None or one.end > one.begin)


def _entries(stored: str) -> Iterator[_Entry]:
    """Yield the entries that this release can read, oldest first."""
    for text in stored.split():
        try:
            yield _Entry(text)
        except ValueError:
            continue
