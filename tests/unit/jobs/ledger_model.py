"""The ledger in plain Python: what its scripts are held against. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.worker_info import WorkerInfo

TRANSIT_MS = 15_000
HEAD_START_MS = 2_000
HEARD_MS = 700
LEASE_STEP_MS = 1_000
TERMINAL = {"succeeded", "failed", "timed_out", "cancelled"}


@dataclass
class Job:
    id: str
    root: str
    parent: str | None
    priority: int
    max_attempts: int
    sequence: int
    tenant: str = "default"
    agent: str = "general-purpose"
    wire: int = 1
    state: str = "queued"
    attempt: int = 0
    token: int | None = None
    worker: str | None = None
    host: str | None = None
    lease_end: int | None = None
    """Of a running attempt, or of a message on its way."""
    files_host: str | None = None
    """Where its last attempt ran."""
    requeued_at: int = 0
    turned_away: str | None = None
    """A worker that does not know its version or its agent had it in hand, and its journal says so:
    which."""
    cancel_asked: bool = False
    cancel_told: bool = False
    open_approvals: list[str] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    """The children for which it is parked."""
    timeout_ms: int | None = None
    ran_ms: int = 0
    claimed_at: int = 0
    beat_at: int = 0
    lease_at: int = 0
    """When its lease lapses, by the clock of leases."""
    clock_from: int | None = None
    """Since when the time of a child runs that it waits for: so does its own."""
    deadline: int | None = None
    """When the reaper ends it."""
    calls_kept: int = 0
    """The model calls of its newest checkpoint."""
    history: list[str] = field(default_factory=lambda: ["queued"])

    @property
    def rank(self) -> tuple[int, int]:
        return (-self.priority, self.sequence)

    @property
    def needs(self) -> tuple[int, str]:
        """What a worker has to know of it."""
        return self.wire, self.agent

    @property
    def is_ready(self) -> bool:
        return self.state == "queued" and self.lease_end is None

    @property
    def is_on_its_way(self) -> bool:
        return self.state == "queued" and self.lease_end is not None


def _fits(job: Job, fields: dict[str, str]) -> bool:
    return all(getattr(job, name) == value for name, value in fields.items())


class Model:
    """Jobs and their states; every method does what the script of its name promises."""

    def __init__(self, workers: Collection[WorkerInfo]) -> None:
        self.workers = workers
        """They live, and take jobs."""
        self.policy = AdmissionPolicy()
        self.now = 1_700_000_000_000
        self.redis_began = 0
        self.lease_now = 0
        self._lease_clock_read_at: int | None = None
        self.jobs: dict[str, Job] = {}
        self.decided: dict[str, str] = {}
        """Approval -> decision."""
        self.asked: dict[str, str] = {}
        """Approval -> job."""
        self.told: dict[str, list[str]] = {}
        """Job -> how its children ended, as its journal has it."""
        self.parked_children: dict[str, int] = {}
        """Tree -> children that its jobs submitted when they parked."""
        self.cancelling: list[str] = []
        """What a caller that died left of its cancel."""

    def _advance_lease_clock(self) -> int:
        """Advance the clock of leases by the time since its last use, and at most by a second."""
        passed = self.now - (self._lease_clock_read_at or self.now)
        self.lease_now += min(passed, LEASE_STEP_MS)
        self._lease_clock_read_at = self.now
        return self.lease_now

    def submit(
        self,
        job_id: str,
        root: str,
        parent: str | None,
        priority: int,
        max_attempts: int,
        **lane: Any,
    ) -> None:
        if job_id not in self.jobs:
            sequence = len(self.jobs)
            job = self.jobs[job_id] = Job(
                job_id, root, parent, priority, max_attempts, sequence, **lane
            )
            above = self.jobs.get(parent or "")
            if above is not None and (above.state in TERMINAL or above.cancel_asked):
                self._end(job, "cancelled")

    def ready(self, root: str) -> list[Job]:
        """A tree's waiting jobs, first to go first."""
        waiting = [job for job in self.jobs.values() if job.root == root and job.is_ready]
        return sorted(waiting, key=lambda job: job.rank)

    def active(self, **of: str) -> set[str]:
        """The jobs on their way or running whose fields are those."""
        return {
            job.id for job in self.jobs.values() if job.lease_end is not None and _fits(job, of)
        }

    def places(self, of: tuple[int, str] | None = None) -> int:
        """How many jobs the workers can take beside those on their way.

        Given what they need, of those.
        """
        on_their_way = [
            job for job in self.jobs.values() if job.is_on_its_way and of in (None, job.needs)
        ]
        return sum(self.free_places(of).values()) - len(on_their_way)

    def free_places(self, of: tuple[int, str] | None = None) -> dict[str, int]:
        """By host."""
        free: dict[str, int] = {}
        for worker in self.workers:
            if of is None or worker.reads(*of):
                held = sum(job.worker == worker.name for job in self.jobs.values())
                free[worker.host] = free.get(worker.host, 0) + max(0, worker.concurrency - held)
        for worker in self.workers:
            if worker.host_limit and worker.host in free:
                left = worker.host_limit - sum(
                    job.host == worker.host for job in self.jobs.values()
                )
                free[worker.host] = min(free[worker.host], max(0, left))
        return free

    def may_go(self, job: Job) -> bool:
        """Whether no limit stands against it."""
        if not job.is_ready or self.places(job.needs) <= 0:
            return False
        limits = (
            (self.active(root=job.root), self.policy.tree_jobs),
            (self.active(tenant=job.tenant), self.policy.tenant_limit(job.tenant)),
            (self.active(agent=job.agent), self.policy.agents.get(job.agent)),
        )
        return all(limit is None or len(active) < limit for active, limit in limits)

    def dispatched(self, job_id: str) -> None:
        self.jobs[job_id].lease_end = self.now + TRANSIT_MS

    def claim(self, job_id: str, worker: WorkerInfo, lease_ms: int) -> str:
        """`claimed` or why not."""
        host, host_limit = worker.host, worker.host_limit
        job = self.jobs.get(job_id)
        if job is None:
            return "unknown"
        if job.state != "queued" or job.lease_end is None:
            return job.state
        if not worker.reads(*job.needs):
            return self._turn_away(job, worker)
        if host_limit and sum(other.host == host for other in self.jobs.values()) >= host_limit:
            self._requeue(job)
            return "host full"
        if self._waits_for_its_host(job, host):
            self._give_back(job)
            return "waits for its host"
        job.state, job.host, job.lease_end = "running", host, self.now + lease_ms
        job.lease_at = self._advance_lease_clock() + lease_ms
        job.worker, job.files_host = worker.name, host
        job.claimed_at = job.beat_at = self.now
        job.turned_away = None
        job.attempt += 1
        job.history.append("running")
        self._settle_clocks()
        return "claimed"

    def beat(self, job_id: str, token: int, lease_ms: int) -> str:
        job, lease_at = self.jobs[job_id], self._advance_lease_clock() + lease_ms
        if not self._holds(job, token):
            return "lost"
        job.lease_end, job.beat_at, job.lease_at = self.now + lease_ms, self.now, lease_at
        if job.cancel_told:
            job.deadline = None
        job.cancel_told = job.cancel_asked
        return "cancel" if job.cancel_asked else "held"

    def finish(self, job_id: str, token: int, state: str) -> bool:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return False
        self._end(job, state)
        self.cancelling += [child.id for child in self._below(job) if child.state not in TERMINAL]
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
        job.ran_ms += self.now - job.claimed_at
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
        job.ran_ms += self.now - job.claimed_at
        self._requeue(job)
        return True

    def park(
        self,
        job_id: str,
        token: int,
        approvals: Collection[str],
        children: Collection[str],
        *,
        bounds: TreeBounds,
        timeout_ms: int | None = None,
    ) -> str | None:
        job = self.jobs[job_id]
        if not self._holds(job, token):
            return None
        job.ran_ms += self.now - job.claimed_at
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
        job.state, job.open_approvals, job.timeout_ms = "waiting", still_open, timeout_ms
        job.history.append("waiting")
        self._settle_clocks()
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
        self._resume(job)
        return "taken"

    def cancel(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        before = job.state
        self._cancel(job)
        self.cancel_rest()
        return before

    def begin_cancel(self, job_id: str) -> None:
        """The first step of a cancel whose caller dies after it."""
        self.cancelling += self._cancel_one(self.jobs[job_id])

    def cancel_rest(self) -> None:
        for job_id in self.cancelling:
            self._cancel(self.jobs[job_id])
        self.cancelling = []

    def _cancel(self, job: Job) -> None:
        for child in self._cancel_one(job):
            self._cancel(self.jobs[child])

    def _cancel_one(self, job: Job) -> list[str]:
        if job.state in {"queued", "waiting"}:
            self._end(job, "cancelled")
        elif job.state == "running":
            if not job.cancel_asked:
                job.deadline = self.now + HEARD_MS
            job.cancel_asked = True
        return [child.id for child in self._below(job)]

    def _below(self, job: Job) -> list[Job]:
        return [child for child in self.jobs.values() if child.parent == job.id]

    def reap(self) -> dict[str, str]:
        reaped, lease_now = {}, self._advance_lease_clock()
        for job in self.jobs.values():
            if job.lease_end is None or job.lease_end >= self.now:
                continue
            if job.state == "running" and job.lease_at >= lease_now:
                job.lease_end = self.now + job.lease_at - lease_now
                continue
            if job.state == "running":
                job.ran_ms += job.beat_at - job.claimed_at
            redis_was_away = self.now - (self.uptime_seconds + 1) * 1000 > job.beat_at
            if job.state == "running" and not job.cancel_asked and redis_was_away:
                job.attempt -= 1
                self._requeue(job)
            elif job.state == "queued" or (not job.cancel_asked and job.attempt < job.max_attempts):
                self._requeue(job)
            else:
                self._end(job, "cancelled" if job.cancel_asked else "failed")
            reaped[job.id] = job.state
        for job in self._over():
            if job.deadline is None:
                continue  # another's end sent it on
            if job.state == "waiting":
                self._end(job, "timed_out")
                self.cancelling += [
                    child.id for child in self.jobs.values() if child.parent == job.id
                ]
            else:
                self._end(job, "cancelled")
            reaped[job.id] = job.state
        self.cancel_rest()
        return reaped

    @property
    def uptime_seconds(self) -> int:
        """As Redis tells it."""
        return (self.now - self.redis_began) // 1000

    def _over(self) -> list[Job]:
        over = [
            job
            for job in self.jobs.values()
            if job.deadline is not None and job.deadline < self.now
        ]
        return sorted(over, key=lambda job: (job.deadline, job.id))

    def open_approvals(self) -> set[str]:
        return {approval for job in self.jobs.values() for approval in job.open_approvals}

    def _turn_away(self, job: Job, worker: WorkerInfo) -> str:
        of_wire = job.wire > worker.wire_newest
        unknown = "wire" if of_wire else "agent"
        if job.turned_away == unknown:
            self._give_back(job)
        else:
            self._requeue(job)
        job.turned_away = unknown
        if of_wire:
            return f"wire version {job.wire}: this worker knows 1 to {worker.wire_newest}"
        return f"agent {job.agent}: this worker knows {' '.join(worker.agents)}"

    def _waits_for_its_host(self, job: Job, host: str) -> bool:
        own = job.files_host
        if own is None or own == host or self.now - job.requeued_at >= HEAD_START_MS:
            return False
        return self.free_places().get(own, 0) > 0

    def _is_awaited(self, job: Job, child: str, bounds: TreeBounds) -> bool:
        """Submit a child where there is none; whether it has yet to end."""
        if child not in self.jobs:
            siblings = sum(other.parent == job.id for other in self.jobs.values())
            of_tree = self.parked_children.setdefault(job.root, 0)
            if siblings >= bounds.max_children or of_tree >= bounds.max_tree_children:
                self._tell(job, "refused")
                return False
            self.parked_children[job.root] += 1
            self.submit(child, job.root, job.id, 0, 3, tenant=job.tenant)
        state = self.jobs[child].state
        if state in TERMINAL:
            self._tell(job, state)
        return state not in TERMINAL

    def _tell(self, job: Job, state: str) -> None:
        self.told.setdefault(job.id, []).append(state)

    def _resume(self, job: Job) -> None:
        if job.state != "waiting" or job.open_approvals:
            return
        if not job.awaited:
            self._stop_clock(job)
            self._requeue(job)
        self._settle_clocks()

    def _works(self, job: Job) -> bool:
        """Whether its time runs."""
        return job.state == "running" or job.clock_from is not None

    def _settle_clocks(self) -> None:
        """Let the time of parked jobs run while that of a child does that they wait for."""
        for job in sorted(self.jobs.values(), key=lambda one: -self._depth(one)):
            if job.state != "waiting":
                continue
            is_due = not job.open_approvals and any(
                self._works(self.jobs[child]) for child in job.awaited
            )
            if is_due and job.clock_from is None:
                job.clock_from = self.now
                if job.timeout_ms is not None:
                    job.deadline = self.now + job.timeout_ms - job.ran_ms
            elif not is_due:
                self._stop_clock(job)

    def _depth(self, job: Job) -> int:
        above = self.jobs.get(job.parent or "")
        return 0 if above is None else 1 + self._depth(above)

    def _stop_clock(self, job: Job) -> None:
        if job.clock_from is not None:
            job.ran_ms += self.now - job.clock_from
        job.clock_from = job.deadline = None

    def _holds(self, job: Job, token: int) -> bool:
        return job.state == "running" and job.token == token

    def _give_back(self, job: Job) -> None:
        job.token = job.worker = job.host = job.lease_end = None

    def _requeue(self, job: Job) -> None:
        self._give_back(job)
        job.state, job.requeued_at = "queued", self.now
        job.turned_away = None
        job.open_approvals = []
        job.history.append("queued")
        self._settle_clocks()

    def _end(self, job: Job, state: str) -> None:
        self._give_back(job)
        self._stop_clock(job)
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
            self._resume(parent)
        self._settle_clocks()
