"""What happens in a run.

The jobs and the faults, made from the seed alone, so that a seed can be replayed.

Jobs are submitted as fast as they are worked off, so how many there are depends on the machine; the
n-th is always the same. Faults have times, and targets by number: of the workers, or of what runs
at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

MANY_ATTEMPTS = 50
"""More than faults can take from one job: its attempts never end it, so it must succeed."""
FIRST_FAULT_SECONDS = 2.0
"""Times count from the first job's success."""
QUIET_SECONDS = 15.0
"""No fault begins so shortly before the end."""
FAULT_GAP_SECONDS = (3.0, 11.0)
"""Between the beginnings of two faults: eight or nine a minute, and many that overlap."""
AFTERMATH_SECONDS = 5.0
"""A fault counts as over so long after it was healed: processes start again."""
FAR_NUMBER = 1_000_000
WORKSPACE_SHARE = 0.25
"""Of the jobs that start from a snapshot."""


@dataclass(frozen=True)
class JobKind:
    """One sort of job."""

    weight: int
    agent: str = "general-purpose"
    sleep_seconds: tuple[float, float] = (0.0, 0.3)
    """How long each of its commands takes, from and to."""
    timeout_seconds: tuple[float, float] | None = None
    cancel_after_seconds: tuple[float, float] | None = None
    max_attempts: int = MANY_ATTEMPTS
    ends: tuple[str, ...] = ("succeeded",)
    """The states in which it may end."""


JOB_KINDS = {
    "tiny": JobKind(34),
    "steps": JobKind(18, sleep_seconds=(0.2, 1.5)),
    "files": JobKind(10),
    "long": JobKind(8, sleep_seconds=(2.0, 6.0)),
    "stumbles": JobKind(6),
    "background": JobKind(5),
    "guarded": JobKind(6, agent="guarded"),
    "rejected": JobKind(2, agent="guarded"),
    "parent": JobKind(5, agent="lead", sleep_seconds=(0.1, 1.0)),
    "tree": JobKind(1, agent="lead"),
    "cancelled": JobKind(
        4,
        sleep_seconds=(60.0, 60.0),
        cancel_after_seconds=(0.0, 8.0),
        ends=("cancelled",),
    ),
    "late": JobKind(
        2, sleep_seconds=(120.0, 120.0), timeout_seconds=(4.0, 8.0), ends=("timed_out",)
    ),
    "broken": JobKind(2, ends=("failed",)),
    "once": JobKind(3, sleep_seconds=(0.2, 1.5), max_attempts=1, ends=("succeeded", "failed")),
}


@dataclass(frozen=True)
class PlannedJob:
    """One job to submit."""

    id: str
    kind: str
    description: str
    agent: str
    max_attempts: int
    timeout_seconds: float | None
    cancel_after_seconds: float | None
    with_workspace: bool


@dataclass(frozen=True)
class FaultKind:
    """One sort of fault."""

    weight: int
    seconds: tuple[float, float] = (0.0, 0.0)
    """How long it lasts, from and to."""
    needs_docker: bool = False
    first_alone: bool = False
    """Whether a run begins with one, during which nothing else happens: there is a proof of it."""


FAULT_KINDS = {
    "worker killed": FaultKind(9),
    "worker stopped": FaultKind(5, (1.0, 25.0)),
    "worker told to end": FaultKind(4),
    "redis killed": FaultKind(3, (0.2, 6.0)),
    "redis hangs": FaultKind(1, (10.0, 18.0), first_alone=True),
    "redis full": FaultKind(1, (25.0, 30.0), first_alone=True),
    "network cut": FaultKind(3, (1.0, 20.0)),
    "network swallows": FaultKind(3, (1.0, 20.0)),
    "answers lost": FaultKind(3, (0.5, 8.0)),
    "container killed": FaultKind(5, needs_docker=True),
    "resident killed": FaultKind(3, needs_docker=True),
    "steward killed": FaultKind(3, needs_docker=True),
    "engine killed": FaultKind(1, (0.0, 5.0), needs_docker=True),
    "engine stopped": FaultKind(1, (2.0, 20.0), needs_docker=True),
    "engine stays away": FaultKind(1, (20.0, 25.0), needs_docker=True, first_alone=True),
    "power failure": FaultKind(1, (0.0, 4.0)),
    "disk full": FaultKind(2, (2.0, 12.0)),
    "wrong clock": FaultKind(2, (15.0, 45.0)),
    "earlier release": FaultKind(2, (25.0, 50.0)),
}


@dataclass(frozen=True)
class PlannedFault:
    """One fault to inject."""

    at: float
    """Seconds after the first job's success."""
    kind: str
    target: int
    """Which worker or container: its number among those that there are, counted round."""
    seconds: float


def planned_jobs(seed: int) -> Iterator[PlannedJob]:
    """All jobs of a seed; there is no last one."""
    random = Random(f"jobs {seed}")  # noqa: S311 - to be replayed, not to be secret
    names, weights = list(JOB_KINDS), [kind.weight for kind in JOB_KINDS.values()]
    number = 0
    while True:
        (name,) = random.choices(names, weights)
        kind = JOB_KINDS[name]
        number += 1
        yield PlannedJob(
            id=f"chaos-{seed}-{number:06}",  # sortable, as ids are
            kind=name,
            description=f"chaos {name} {_between(random, kind.sleep_seconds)}",
            agent=kind.agent,
            max_attempts=kind.max_attempts,
            timeout_seconds=kind.timeout_seconds and _between(random, kind.timeout_seconds),
            cancel_after_seconds=kind.cancel_after_seconds
            and _between(random, kind.cancel_after_seconds),
            with_workspace=random.random() < WORKSPACE_SHARE,
        )


def planned_faults(seed: int, seconds: float, *, docker: bool = True) -> list[PlannedFault]:
    """The faults of a run of that length, by time: each kind once, and then by their weights.

    Those that are alone come first. An engine that was away is the last of these: it takes long to
    start again, with all that it has to remove.
    """
    random = Random(f"faults {seed}")  # noqa: S311 - as above
    kinds = {name: kind for name, kind in FAULT_KINDS.items() if docker or not kind.needs_docker}
    names, weights = list(kinds), [kind.weight for kind in kinds.values()]
    first_ones = random.sample(names, len(names))
    first_ones.sort(key=lambda name: (kinds[name].first_alone, not kinds[name].needs_docker))
    faults, at = [], FIRST_FAULT_SECONDS
    while at < seconds - QUIET_SECONDS:
        is_first = bool(first_ones)
        name = first_ones.pop() if first_ones else random.choices(names, weights)[0]
        lasts = _between(random, kinds[name].seconds)
        faults.append(PlannedFault(round(at, 2), name, random.randrange(FAR_NUMBER), lasts))
        if is_first and kinds[name].first_alone:
            at += lasts + AFTERMATH_SECONDS
        at += random.uniform(*FAULT_GAP_SECONDS)
    return faults


def _between(random: Random, bounds: tuple[float, float]) -> float:
    return round(random.uniform(*bounds), 2)
