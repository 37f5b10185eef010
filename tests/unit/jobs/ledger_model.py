"""The ledger in plain Python: what its scripts are held against. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from orchestrator.jobs.spec import TreeBounds

TRANSIT_MS = 15_000
HEAD_START_MS = 2_000
TERMINAL = {"succeeded", "failed", "timed_out", "cancelled"}


@dataclass
class Job:
    id: str
    root: str
    parent: str | None
    priority: int
    max_attempts: int
    sequence: int
    state: str = "queued"
    attempt: int = 0
    token: int | None = None
    host: str | None = None
    lease_end: int | None = None
    """Of a running attempt, or of a message on its way."""
    files_host: str | None = None
    """Where its last attempt ran."""
    requeued_at: int = 0
    cancel_asked: bool = False
    open_approvals: list[str] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    """The children for which it is parked."""
    calls_kept: int = 0
    """The model calls of its newest checkpoint."""
    history: list[str] = field(default_factory=lambda: ["queued"])

    @property
    def rank(self) -> tuple[int, int]:
        return (-self.priority, self.sequence)

    @property
    def is_ready(self) -> bool:
        return self.state == "queued" and self.lease_end is None


class Model:
    """Jobs and their states; every method does what the script of its name promises."""

    def __init__(self, places: dict[str, int]) -> None:
        self.places = places
        """By host; their workers live."""
        self.now = 1_700_000_000_000
        self.jobs: dict[str, Job] = {}
        self.decided: dict[str, str] = {}
        """Approval -> decision."""
        self.asked: dict[str, str] = {}
        """Approval -> job."""
        self.told: dict[str, list[str]] = {}
        """Job -> how its children ended, as its journal has it."""
        self.parked_children: dict[str, int] = {}
        """Tree -> children that its jobs submitted when they parked."""

    def submit(self, job_id: str, root: str, parent: str | None, priority: int, max_attempts: int) -> None:
        if job_id not in self.jobs:
            self.jobs[job_id] = Job(job_id, root, parent, priority, max_attempts, len(self.jobs))

    def ready(self, root: str) -> list[Job]:
        """A tree's waiting jobs, first to go first."""
        waiting = [job for job in self.jobs.values() if job.root == root and job.is_ready]
        return sorted(waiting, key=lambda job: job.rank)

    def active(self, root: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.root == root and job.lease_end is not None]

    def dispatched(self, job_id: str) -> None:
        self.jobs[job_id].lease_end = self.now + TRANSIT_MS

    def claim(self, job_id: str, host: str, host_limit: int, lease_ms: int) -> str:
        """`claimed` or why not."""
        job = self.jobs.get(job_id)
        if job is None:
            return "unknown"
        if job.state != "queued" or job.lease_end is None:
            return job.state
        if host_limit and sum(other.host == host for other in self.jobs.values()) >= host_limit:
            self._give_back(job)
            job.requeued_at = self.now
            job.history.append("queued")
            return "host full"
        if self._waits_for_its_host(job, host):
            self._give_back(job)
            return "waits for its host"
        job.state, job.host, job.lease_end = "running", host, self.now + lease_ms
        job.files_host = host
        job.attempt += 1
        job.history.append("running")
        return "claimed"

    def beat(self, job_id: str, token: int, lease_ms: int) -> str:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return "lost"
        job.lease_end = self.now + lease_ms
        return "cancel" if job.cancel_asked else "held"

    def finish(self, job_id: str, token: int, state: str) -> bool:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return False
        self._end(job, state)
        return True

    def checkpoint(self, job_id: str, token: int, calls: int) -> bool:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return False
        job.calls_kept = calls
        return True

    def release(self, job_id: str, token: int) -> bool:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return False
        if job.cancel_asked:
            self._end(job, "cancelled")
        else:
            job.attempt -= 1
            self._requeue(job)
        return True

    def fail_attempt(self, job_id: str, token: int) -> bool:
        job = self.jobs[job_id]
        if not self._holds(job, token) or job.cancel_asked or job.attempt >= job.max_attempts:
            return False
        self._requeue(job)
        return True

    def park(
        self,
        job_id: str,
        token: int,
        approvals: Collection[str],
        children: Collection[str],
        bounds: TreeBounds,
    ) -> str | None:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return None
        if job.cancel_asked:
            self._end(job, "cancelled")
            return "cancelled"
        for approval in approvals:
            self.asked.setdefault(approval, job_id)
        still_open = [approval for approval in approvals if approval not in self.decided]
        job.attempt -= 1
        job.awaited = {child for child in children if self._is_awaited(job, child, bounds)}
        if not still_open and not job.awaited:
            self._requeue(job)
            return "queued"
        self._give_back(job)
        job.state, job.open_approvals = "waiting", still_open
        job.history.append("waiting")
        return "waiting"

    def answer(self, approval: str, decision: str) -> str:
        """`taken`, `unknown` or `settled`."""
        if approval not in self.asked:
            return "unknown"
        if approval in self.decided:
            return "settled"
        self.decided[approval] = decision
        job = self.jobs[self.asked[approval]]
        job.open_approvals = [other for other in job.open_approvals if other != approval]
        self._go_on(job)
        return "taken"

    def cancel(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        before = job.state
        for member in self._below(job):
            if member.state in {"queued", "waiting"}:
                self._end(member, "cancelled")
            elif member.state == "running":
                member.cancel_asked = True
        return before

    def reap(self) -> dict[str, str]:
        reaped = {}
        for job in self.jobs.values():
            if job.lease_end is None or job.lease_end >= self.now:
                continue
            if job.state == "queued" or (not job.cancel_asked and job.attempt < job.max_attempts):
                self._requeue(job)
            else:
                self._end(job, "cancelled" if job.cancel_asked else "failed")
            reaped[job.id] = job.state
        return reaped

    def open_approvals(self) -> set[str]:
        return {approval for job in self.jobs.values() for approval in job.open_approvals}

    def _waits_for_its_host(self, job: Job, host: str) -> bool:
        own = job.files_host
        if own is None or own == host or self.now - job.requeued_at >= HEAD_START_MS:
            return False
        return self.places[own] > sum(other.host == own for other in self.jobs.values())

    def _is_awaited(self, job: Job, child: str, bounds: TreeBounds) -> bool:
        """Submit a child where there is none; whether it has yet to end."""
        if child not in self.jobs:
            siblings = sum(other.parent == job.id for other in self.jobs.values())
            of_tree = self.parked_children.setdefault(job.root, 0)
            if siblings >= bounds.max_children or of_tree >= bounds.max_tree_children:
                self._tell(job, "refused")
                return False
            self.parked_children[job.root] += 1
            self.submit(child, job.root, job.id, 0, 3)
        state = self.jobs[child].state
        if state in TERMINAL:
            self._tell(job, state)
        return state not in TERMINAL

    def _tell(self, job: Job, state: str) -> None:
        self.told.setdefault(job.id, []).append(state)

    def _go_on(self, job: Job) -> None:
        if job.state == "waiting" and not job.open_approvals and not job.awaited:
            self._requeue(job)

    def _holds(self, job: Job, token: int) -> bool:
        return job.state == "running" and job.token == token

    def _give_back(self, job: Job) -> None:
        job.token = job.host = job.lease_end = None

    def _requeue(self, job: Job) -> None:
        self._give_back(job)
        job.state, job.requeued_at = "queued", self.now
        job.open_approvals = []
        job.history.append("queued")

    def _end(self, job: Job, state: str) -> None:
        self._give_back(job)
        for approval in job.open_approvals:
            self.decided[approval] = "withdrawn"
        job.open_approvals = []
        job.awaited = set()
        job.state = state
        job.history.append(state)
        parent = self.jobs.get(job.parent or "")
        if parent is not None and job.id in parent.awaited:
            parent.awaited.remove(job.id)
            self._tell(parent, state)
            self._go_on(parent)

    def _below(self, job: Job) -> Iterator[Job]:
        yield job
        for child in self.jobs.values():
            if child.parent == job.id:
                yield from self._below(child)
