"""The registration of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.jobs.versions import WIRE_NEWEST, WIRE_OLDEST


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

    def reads(self, wire: int, agent: str) -> bool:
        """Return whether it can run a job of that wire version and that agent."""
        return self.wire_oldest <= wire <= self.wire_newest and self.knows(agent)

    def knows(self, agent: str) -> bool:
        """Return whether it has a definition of that agent."""
        return not self.agents or agent in self.agents

    def fields(self) -> dict[str, str | int]:
        """Return the fields of its hash in Redis, which has no name."""
        return {
            "host": self.host,
            "concurrency": self.concurrency,
            "running": self.running,
            "sandbox": self.sandbox,
            "host_limit": self.host_limit,
            "draining": int(self.draining),
            "why_local": self.why_local,
            "wire_oldest": self.wire_oldest,
            "wire_newest": self.wire_newest,
            "agents": " ".join(self.agents),
        }


def worker_of(name: str, fields: Mapping[str, str]) -> WorkerInfo:
    """Return a worker from its hash in Redis.

    Args:
        name: The worker's name.
        fields: What `WorkerInfo.fields` returned, as text.
    """
    return WorkerInfo(
        name=name,
        host=fields["host"],
        concurrency=int(fields["concurrency"]),
        running=int(fields["running"]),
        sandbox=fields["sandbox"],
        host_limit=int(fields["host_limit"]),
        draining=fields["draining"] == "1",
        why_local=fields.get("why_local", ""),
        wire_oldest=int(fields.get("wire_oldest", 1)),
        wire_newest=int(fields.get("wire_newest", 1)),
        agents=tuple(fields.get("agents", "").split()),
    )
