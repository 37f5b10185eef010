"""The registration of a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import TypeAdapter

from .versions import WIRE_NEWEST, WIRE_OLDEST

CHANGING = ("running", "hanging_threads", "loop_delays")
LISTS = ("agents", "keys")
"""The fields that are stored as a list of words."""
DOCUMENTS = ("definitions", "protection", "loop_delays", "model_faults")
"""The fields that are stored as JSON."""


class Fitness(StrEnum):
    """Whether a worker takes jobs."""

    FIT = "fit"
    DRAINING = "draining"
    """It is stopping, or paused."""
    UNFIT = "unfit"
    """It cannot run jobs."""


@dataclass(frozen=True)
class WorkerLoad:
    """Where a living worker is, whether it takes jobs, and how many it runs.

    It is the short part of a registration, from which totals of thousands of workers are computed.
    """

    name: str
    host: str
    concurrency: int
    """How many jobs it can run at once."""
    running: int
    sandbox: str
    draining: bool = False
    pool: str = ""
    """The pool of the worker, whose jobs it prefers; empty: none."""
    unfit: str = ""
    """Why it takes no jobs, and for how long, as a text for people; empty when it is fit."""
    hanging_threads: int = 0
    """The number of its threads that hang in a system call."""
    disk_free_bytes: int = 0
    """The free space of the disk with its state folder; 0 if its release does not report it."""

    @property
    def fitness(self) -> Fitness:
        """Whether it takes jobs."""
        if self.unfit:
            return Fitness.UNFIT
        return Fitness.DRAINING if self.draining else Fitness.FIT

    @property
    def free(self) -> int:
        """How many more jobs it takes."""
        free = self.concurrency - self.running
        return max(0, free) if self.fitness is Fitness.FIT else 0


@dataclass(frozen=True)
class WorkerAbility(WorkerLoad):
    """A living worker, and which jobs it can run."""

    wire_oldest: int = WIRE_OLDEST
    wire_newest: int = WIRE_NEWEST
    """The versions of jobs that it reads (`versions.py`)."""
    agents: tuple[str, ...] = ()
    """The names of its agent definitions; empty: any agent."""

    def reads(self, wire: int, agent: str) -> bool:
        """Return whether it can run a job of that wire version and that agent."""
        return self.wire_oldest <= wire <= self.wire_newest and self.knows(agent)

    def knows(self, agent: str) -> bool:
        """Return whether it has a definition of that agent."""
        return not self.agents or agent in self.agents


@dataclass(frozen=True)
class WorkerInfo(WorkerAbility):
    """A living worker, as it registers itself."""

    host_limit: int = 0
    """The maximum number of jobs on its host; 0: no limit but the workers' concurrency."""
    why_local: str = ""
    """Why its jobs are not isolated; empty when they are."""
    definitions: Mapping[str, str] = field(default_factory=dict)
    """The fingerprints of its agent definitions by name; empty if its release does not report them.
    """
    queue: str = ""
    """Its own queue, for jobs that are sent to it alone; empty if its release has none."""
    keys: tuple[str, ...] = ()
    """The names of its variables with keys and secrets, never their values."""
    protection: Mapping[str, str] = field(default_factory=dict)
    """What it reports of its protection: names with a short value each, for people."""
    loop_delays: Mapping[str, float] = field(default_factory=dict)
    """How late its loop ran what was due since its start: for each bound in seconds the number of
    delays up to it, and the `sum` of all; empty if its release does not measure them."""

    model: str = ""
    """The model of its jobs that name none; empty if its release does not report it."""
    model_faults: Mapping[str, str] | None = None
    """Why it cannot reach models, by the names of their services, each a sentence without its
    subject; None if its release does not report it."""

    def fields(self) -> dict[str, str | int]:
        """Return the fields of its hash in Redis, which has no name."""
        fields = asdict(self)
        del fields["name"]
        return {
            **fields,
            "draining": int(self.draining),
            **{name: " ".join(fields[name]) for name in LISTS},
            **{name: json.dumps(fields[name]) for name in DOCUMENTS},
        }

    def changing_fields(self) -> dict[str, str | int]:
        """Return those of `fields` that differ from one heartbeat to the next."""
        return {name: value for name, value in self.fields().items() if name in CHANGING}

    def lasting_fields(self) -> dict[str, str | int]:
        """Return the other fields: they can be long, and are sent only when they have changed."""
        return {name: value for name, value in self.fields().items() if name not in CHANGING}


Worker = TypeVar("Worker", bound=WorkerLoad)

_READERS: Mapping[type[WorkerLoad], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (WorkerLoad, WorkerAbility, WorkerInfo)
}
_FIRST_RELEASE = {"wire_oldest": 1, "wire_newest": 1}
"""The versions of the first release, which registered none."""


def read_worker(kind: type[Worker], name: str, stored: Mapping[str, str]) -> Worker:
    """Return a worker, or a part of what is known of it, from its hash in Redis.

    Args:
        kind: How much of it.
        name: The worker's name.
        stored: What `WorkerInfo.fields` returned, as text; missing fields have their defaults.
    """
    values: dict[str, Any] = {**_FIRST_RELEASE, **stored, "name": name}
    values |= {field: stored[field].split() for field in LISTS if field in stored}
    values |= {field: json.loads(stored[field]) for field in DOCUMENTS if field in stored}
    worker: Worker = _READERS[kind].validate_python(values)
    return worker
