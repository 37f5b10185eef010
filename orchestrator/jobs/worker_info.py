"""The registration of a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pydantic import TypeAdapter

from fanout.orchestrator.jobs.versions import WIRE_NEWEST, WIRE_OLDEST

CHANGING = ("running", "hanging_threads", "loop_delays")


@dataclass(frozen=True)
class WorkerInfo:
    """A living worker, as it registers itself."""

    name: str
    host: str
    concurrency: int
    running: int
    sandbox: str
    host_limit: int = 0
    """The maximum number of jobs on its host; 0: no limit but the workers' concurrency."""
    draining: bool = False
    why_local: str = ""
    """Why its jobs are not isolated; empty when they are."""
    wire_oldest: int = WIRE_OLDEST
    wire_newest: int = WIRE_NEWEST
    """The versions of jobs that it reads (`versions.py`)."""
    agents: tuple[str, ...] = ()
    """The names of its agent definitions; empty: any agent."""
    definitions: Mapping[str, str] = field(default_factory=dict)
    """The fingerprints of its agent definitions by name; empty in a release without them."""
    pool: str = ""
    """The pool that it is of: it prefers that pool's jobs; empty: none."""
    queue: str = ""
    """Its own queue, for jobs that are sent to it alone; empty in a release without them."""
    keys: tuple[str, ...] = ()
    """The names of the variables with keys and secrets that it has, never their values."""
    protection: Mapping[str, str] = field(default_factory=dict)
    """What it says of its protection: a name and a short value each, for people."""
    unfit: str = ""
    """Why it takes no jobs, and for how long, for people; empty when it is fit."""
    hanging_threads: int = 0
    """How many of its threads hang in a call of the system."""
    loop_delays: Mapping[str, float] = field(default_factory=dict)
    """How late its loop ran what was due since its start: for each bound in seconds the number of
    delays up to it, and the `sum` of all; empty in a release that did not measure."""

    model: str = ""
    """The model of its jobs that name none; empty in a release that did not say it."""
    model_faults: Mapping[str, str] | None = None
    """Why it cannot reach models, by the names of their services, each a sentence without its
    subject; None in a release that did not say it."""

    disk_free_bytes: int = 0
    """The free space of the disk with its state folder; 0 in a release that did not say it."""

    def reads(self, wire: int, agent: str) -> bool:
        """Return whether it can run a job of that wire version and that agent."""
        return self.wire_oldest <= wire <= self.wire_newest and self.knows(agent)

    def knows(self, agent: str) -> bool:
        """Return whether it has a definition of that agent."""
        return not self.agents or agent in self.agents

    def fields(self) -> dict[str, str | int]:
        """Return the fields of its hash in Redis, which has no name."""
        fields = asdict(self)
        del fields["name"]
        return {
            **fields,
            "draining": int(self.draining),
            "agents": " ".join(self.agents),
            "definitions": json.dumps(fields["definitions"]),
            "keys": " ".join(self.keys),
            "protection": json.dumps(fields["protection"]),
            "loop_delays": json.dumps(fields["loop_delays"]),
            "model_faults": json.dumps(fields["model_faults"]),
        }

    def changing_fields(self) -> dict[str, str | int]:
        """Return those of `fields` that differ from one heartbeat to the next."""
        return {name: value for name, value in self.fields().items() if name in CHANGING}

    def lasting_fields(self) -> dict[str, str | int]:
        """Return the other ones: they can be long, and are sent when they have changed."""
        return {name: value for name, value in self.fields().items() if name not in CHANGING}


_READER = TypeAdapter(WorkerInfo)


def worker_of(name: str, fields: Mapping[str, str]) -> WorkerInfo:
    """Return a worker from its hash in Redis.

    Args:
        name: The worker's name.
        fields: What `WorkerInfo.fields` returned, as text; the first release had no versions.
    """
    agents = fields.get("agents", "").split()
    definitions = json.loads(fields.get("definitions", "{}"))
    protection = json.loads(fields.get("protection", "{}"))
    loop_delays = json.loads(fields.get("loop_delays", "{}"))
    return _READER.validate_python(
        {
            "wire_oldest": 1,
            "wire_newest": 1,
            **fields,
            "name": name,
            "agents": agents,
            "definitions": definitions,
            "keys": fields.get("keys", "").split(),
            "protection": protection,
            "loop_delays": loop_delays,
            "model_faults": json.loads(fields.get("model_faults", "null")),
        }
    )
