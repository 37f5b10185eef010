"""The ledger's scripts under random interleavings of calls, compared with plain Python."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import pytest
from fakeredis import FakeAsyncRedis
from fakeredis._commands import command
from fakeredis.commands_mixins import server_mixin
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.failures import AnsweredAlready, UnknownApproval, UnknownJob
from fanout.orchestrator.jobs.policy import AdmissionPolicy, TenantShare
from fanout.orchestrator.jobs.result import ResultSoFar, Usage
from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.builders import make_result, make_spec, make_worker
from tests.unit.jobs.ledger_model import TERMINAL, Job, Model

Value = TypeVar("Value")

ROOTS = ("tree-a", "tree-b", "tree-c")
WORKERS = (
    make_worker("w1", host="h1", concurrency=3, wire_newest=1),
    make_worker(
        "w2", host="h2", concurrency=2, host_limit=1, wire_newest=2, agents=("general-purpose",)
    ),
)
"""Three places on the first host; one on the second, whose own limit is less than its worker can
run. Nobody knows the second wire version and the builder both."""
TENANTS = {"ann": TenantShare(weight=3), "bob": TenantShare(jobs=2), "cy": TenantShare()}
AGENTS = ("builder", "general-purpose")
BOUNDS = TreeBounds(max_children=3, max_tree_children=5)
LEASE_SECONDS = 9.0
FOR_EVER_SECONDS = 1e9
ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED)


class LedgerMachine(RuleBasedStateMachine):
    """Parents, workers, reapers and people, in any order, at any time."""

    jobs = Bundle("jobs")
    claims = Bundle("claims")
    """Also of attempts that were lost long ago: their calls still come."""
    approvals = Bundle("approvals")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(WORKERS)
        self.started = 1
        self.loop = asyncio.new_event_loop()
        clock = SimpleNamespace(time=lambda: self.model.now / 1000)
        self.clock = mock.patch.object(server_mixin, "time", clock)
        self.clock.start()
        told = self.redis_tells()
        server_mixin.ServerCommandsMixin.info = told  # fakeredis has no INFO
        self.added = mock.patch.multiple(versions, ADDED={2: {"labels"}}, WIRE_NEWEST=2)
        self.added.start()
        self.redis = FakeAsyncRedis(decode_responses=True)
        self.ledger = Ledger(self.redis, Keys())
        self.journal = Journal(self.redis, Keys())

    def teardown(self) -> None:
        self.run(self.redis.aclose())
        self.clock.stop()
        self.added.stop()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(work)

    @initialize()
    def workers_live(self) -> None:
        for worker in WORKERS:
            self.run(self.ledger.register(worker, FOR_EVER_SECONDS))

    @initialize(
        tree=st.integers(1, 3), tenant=st.none() | st.integers(1, 3), agent=st.integers(1, 3)
    )
    def a_policy_is_given(self, tree: int, tenant: int | None, agent: int) -> None:
        self._give_policy(tree, tenant, agent)

    @rule(tree=st.integers(1, 3), tenant=st.none() | st.integers(1, 3), agent=st.integers(1, 3))
    def a_worker_with_other_limits_starts(self, tree: int, tenant: int | None, agent: int) -> None:
        self._give_policy(tree, tenant, agent)

    def _give_policy(self, tree: int, tenant: int | None, agent: int) -> None:
        self.model.policy = AdmissionPolicy(
            tree_jobs=tree, tenant_jobs=tenant, tenants=TENANTS, agents={"builder": agent}
        )
        self.started += 1
        self.run(
            self.ledger.register(WORKERS[0], FOR_EVER_SECONDS, self.model.policy, self.started)
        )
        older = AdmissionPolicy(tree_jobs=1)
        self.run(self.ledger.register(WORKERS[1], FOR_EVER_SECONDS, older, self.started - 1))

    @rule(
        target=jobs,
        root=st.sampled_from(ROOTS),
        priority=st.integers(-1, 1),
        max_attempts=st.integers(1, 3),
        lane=st.fixed_dictionaries(
            {"tenant": st.sampled_from(sorted(TENANTS)), "agent": st.sampled_from(AGENTS)}
        ),
        labels=st.sampled_from(({}, {}, {"what": "not every worker knows"})),
    )
    def submit(
        self,
        root: str,
        priority: int,
        max_attempts: int,
        lane: dict[str, str],
        labels: dict[str, str],
    ) -> str:
        return self._submit(root, None, priority, max_attempts, labels, **lane)

    @rule(target=jobs, parent=jobs, priority=st.integers(-1, 1))
    def submit_child(self, parent: str, priority: int) -> str:
        above = self.model.jobs[parent]
        return self._submit(above.root, parent, priority, 2, tenant=above.tenant)

    def _submit(
        self,
        root: str,
        parent: str | None,
        priority: int,
        max_attempts: int,
        labels: dict[str, str] | None = None,
        **lane: str,
    ) -> str:
        job_id = f"job-{len(self.model.jobs)}"
        spec = make_spec(
            id=job_id, root_id=root, parent_id=parent, priority=priority, max_attempts=max_attempts,
            labels=labels or {}, **lane,
        )  # fmt: skip
        assert self.run(self.ledger.submit([spec, spec])) == [job_id, job_id]  # twice is one job
        self.model.submit(
            job_id, root, parent, priority, max_attempts, wire=2 if labels else 1, **lane
        )
        return job_id

    @rule(most=st.integers(1, 5))
    def dispatch(self, most: int) -> None:
        room, model = max(0, min(most, self.model.places())), self.model
        taken = [model.jobs[job.spec.id] for job in self.run(self.ledger.dispatch(most))]
        for job in taken:
            assert model.may_go(job)  # no limit is exceeded
            of_tree = [other for other in model.ready(job.root) if other.tenant == job.tenant]
            assert (
                next(other for other in of_tree if model.may_go(other)) is job
            )  # its tree's first
            model.dispatched(job.id)
        left = [job for job in model.jobs.values() if model.may_go(job)]
        assert len(taken) == room or not left  # nothing is left while there is room
        assert len(taken) <= room
        self._turns_were_fair(taken, left)

    def _turns_were_fair(self, taken: list[Job], left: list[Job]) -> None:
        """What is left could have gone all the time, so nobody may be far ahead of it."""
        trees = Counter((job.tenant, job.root) for job in taken)
        tenants = Counter(job.tenant for job in taken)
        for job in left:
            mine = trees[job.tenant, job.root]
            assert all(
                count <= mine + 1 for (tenant, _), count in trees.items() if tenant == job.tenant
            )
            weight = TENANTS[job.tenant].weight
            for tenant, count in tenants.items():
                other = TENANTS[tenant].weight
                assert count / other <= (tenants[job.tenant] + 1) / weight + 1 / other + 1e-9

    @rule(target=claims, job_id=jobs, worker=st.sampled_from(WORKERS))
    def claim(self, job_id: str, worker: Any) -> Any:
        claim = self.run(self.ledger.claim(job_id, worker, LEASE_SECONDS))
        expected = self.model.claim(job_id, worker, int(LEASE_SECONDS * 1000))
        if isinstance(claim, str):
            assert claim == expected
            return multiple()
        assert expected == "claimed"
        job = self.model.jobs[job_id]
        assert claim.attempt == job.attempt
        assert claim.ran_seconds * 1000 == pytest.approx(job.ran_ms)
        assert all(claim.token > other.token for other in self._tokens(job_id))
        job.token = claim.token
        self._claimed.setdefault(job_id, []).append(claim)
        return claim

    @property
    def _claimed(self) -> dict[str, list[Claim]]:
        return self.__dict__.setdefault("_claims_made", {})

    def _tokens(self, job_id: str) -> list[Claim]:
        return self._claimed.get(job_id, [])

    @rule(claim=claims)
    def beat(self, claim: Claim) -> None:
        job_id, token = claim.spec.id, claim.token
        answers = self.run(self.ledger.beat({job_id: token}, LEASE_SECONDS))
        assert answers == {job_id: self.model.beat(job_id, token, int(LEASE_SECONDS * 1000))}

    @rule(claim=claims, state=st.sampled_from(ENDS))
    def finish(self, claim: Claim, state: JobState) -> None:
        job_id, token = claim.spec.id, claim.token
        done = self.run(self.ledger.finish(job_id, token, make_result(job_id, state), {}))
        assert done == self.model.finish(job_id, token, str(state))

    @rule(claim=claims)
    def checkpoint(self, claim: Claim) -> None:
        job_id, token = claim.spec.id, claim.token
        job = self.model.jobs[job_id]
        so_far = ResultSoFar(usage=Usage(model_calls=job.attempt + 1))
        done = self.run(self.ledger.checkpoint(job_id, token, so_far, {"changes": "b"}))
        assert done == self.model.checkpoint(job_id, token, job.attempt + 1)

    @rule(claim=claims)
    def release(self, claim: Claim) -> None:
        done = self.run(self.ledger.release(claim.spec.id, claim.token, "why"))
        assert done == self.model.release(claim.spec.id, claim.token)

    @rule(claim=claims)
    def fail_attempt(self, claim: Claim) -> None:
        done = self.run(self.ledger.fail_attempt(claim.spec.id, claim.token, "why"))
        assert done == self.model.fail_attempt(claim.spec.id, claim.token)

    @rule(
        target=approvals,
        claim=claims,
        numbers=st.sets(st.integers(0, 2)),
        children=st.sets(st.integers(0, 3)),
        timeout=st.sampled_from((None, 2.0, 15.0)),
    )
    def park(
        self, claim: Claim, numbers: set[int], children: set[int], timeout: float | None
    ) -> Any:
        job_id = claim.spec.id
        ids = [f"ap-{job_id}-{number}" for number in sorted(numbers)]
        specs = [
            make_spec(
                id=f"{job_id}-{number}",
                root_id=claim.spec.root_id,
                parent_id=job_id,
                tenant=claim.spec.tenant,
            )
            for number in sorted(children)
        ]
        asked = [_approval(job_id, one) for one in ids]
        state = self.run(
            self.ledger.park(job_id, claim.token, asked, specs, BOUNDS, timeout_seconds=timeout)
        )
        limit = None if timeout is None else int(timeout * 1000)
        named = [spec.id for spec in specs]
        assert state == self.model.park(
            job_id, claim.token, ids, named, bounds=BOUNDS, timeout_ms=limit
        )
        return multiple(*ids)

    @rule(target=jobs, job_id=jobs, number=st.integers(0, 3))
    def look_at_child(self, job_id: str, number: int) -> Any:
        """Let what was submitted by parking be claimed, cancelled and a parent, like any other."""
        child = f"{job_id}-{number}"
        return child if child in self.model.jobs else multiple()

    @rule(approval=approvals, decision=st.sampled_from(("approve", "reject")))
    def answer(self, approval: str, decision: str) -> None:
        expected = self.model.answer(approval, decision)
        try:
            self.run(
                self.ledger.answer(approval, ApprovalAnswer.model_validate({"decision": decision}))
            )
            told = "taken"
        except UnknownApproval:
            told = "unknown"
        except AnsweredAlready:
            told = "settled"
        assert told == expected

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        assert self.run(self.ledger.cancel(job_id)) == self.model.cancel(job_id)
        assert not self.run(self.redis.llen("fanout:cancelling"))

    @rule(job_id=jobs)
    def die_in_a_cancel(self, job_id: str) -> None:
        """After the first step; the next reaper, or the next cancel, goes on."""
        with mock.patch("fanout.orchestrator.jobs.store.ledger.CANCEL_BATCH", 1):
            self.run(self.ledger._cancel_some(job_id))
        self.model.begin_cancel(job_id)

    @rule()
    def cancel_what_is_not_there(self) -> None:
        with pytest.raises(UnknownJob):
            self.run(self.ledger.cancel("no-such-job"))
        self.model.cancel_rest()  # any call goes on with what is listed

    @rule(seconds=st.sampled_from((0.5, 1, 3, 8, 10, 20)))
    def time_passes(self, seconds: float) -> None:
        self.model.now += int(seconds * 1000)

    def redis_tells(self) -> Any:
        """The command INFO, of which the scripts read one line."""

        def info(_: Any, section: bytes) -> bytes:
            assert section == b"server"
            return f"# Server\r\nuptime_in_seconds:{self.model.uptime_seconds}\r\n".encode()

        return command(name="INFO", fixed=(bytes,))(info)

    @rule(seconds=st.sampled_from((0.5, 3, 12)))
    def redis_is_away(self, seconds: float) -> None:
        self.model.now += int(seconds * 1000)
        self.model.redis_began = self.model.now

    @rule(seconds=st.sampled_from((3, 10)))
    def time_passes_while_a_reaper_looks(self, seconds: int) -> None:
        for _ in range(seconds):
            self.model.now += 1000
            self.reap()

    @rule()
    def reap(self) -> None:
        assert self.run(self.ledger.reap()).states == self.model.reap()

    @invariant()
    def records_agree(self) -> None:
        for record in self.run(self.ledger.get_many(self.model.jobs)):
            job = self.model.jobs[record.id]
            assert (record.state, record.attempt) == (job.state, job.attempt)
            result = self.run(self.ledger.result(record.id))
            assert (result is not None) == (job.state in TERMINAL)
            if result is not None and result.error is not None:  # it ended without a worker
                assert result.usage.model_calls == job.calls_kept

    @invariant()
    def nothing_is_held_by_what_does_not_run(self) -> None:
        jobs = self.model.jobs.values()
        leases = dict(self.run(self.redis.zrange(Keys().leases, 0, -1, withscores=True)))
        assert leases == {job.id: job.lease_end for job in jobs if job.lease_end is not None}
        over = dict(self.run(self.redis.zrange("fanout:deadlines", 0, -1, withscores=True)))
        assert over == {job.id: job.deadline for job in jobs if job.deadline is not None}
        for root in ROOTS:
            active = self.run(self.redis.smembers(Keys().active(root)))
            assert active == self.model.active(root=root)
        for tenant in TENANTS:
            active = self.run(self.redis.smembers(Keys().tenant_active(tenant)))
            assert active == self.model.active(tenant=tenant)
        for agent in AGENTS:
            active = self.run(self.redis.smembers(Keys().agent_active(agent)))
            assert active == self.model.active(agent=agent)
        lanes = [
            lane for root in ROOTS for lane in self.run(self.redis.keys(f"fanout:lane:*:{root}:*"))
        ]
        ready = [job_id for lane in lanes for job_id in self.run(self.redis.zrange(lane, 0, -1))]
        assert sorted(ready) == sorted(job.id for job in jobs if job.is_ready)
        for host in ("h1", "h2"):
            held = self.run(self.redis.smembers(f"fanout:host:{host}"))
            assert held == {job.id for job in jobs if job.host == host}
        live = self.run(self.redis.smembers(Keys().live))
        assert live == {job.id for job in jobs if job.state not in TERMINAL}
        waiting = {approval.id for approval in self.run(self.ledger.approvals())}
        assert waiting == self.model.open_approvals()

    @invariant()
    def journals_tell_what_happened_and_end_once(self) -> None:
        for job in self.model.jobs.values():
            events = self.run(self.journal.read(job.id))
            states = [event.data["state"] for event in events if event.type is EventType.JOB_STATE]
            assert states == job.history
            assert sum(state in TERMINAL for state in states) == (job.state in TERMINAL)
            told = [
                event.data["state"] for event in events if event.type is EventType.CHILD_FINISHED
            ]
            assert told == self.model.told.get(job.id, [])

    @invariant()
    def a_parked_job_waits_for_what_has_not_ended(self) -> None:
        for job in self.model.jobs.values():
            awaited = self.run(self.redis.smembers(f"fanout:awaited:{job.id}"))
            assert awaited == job.awaited
            assert not awaited or job.state == "waiting"
            assert all(self.model.jobs[child].state not in TERMINAL for child in awaited)


def _approval(job_id: str, approval_id: str) -> Approval:
    return Approval(
        id=approval_id, job_id=job_id, agent="a", call_id="c", tool="execute", arguments={},
        decisions=("approve", "reject"), sha256="0",
    )  # fmt: skip


LedgerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestLedger(LedgerMachine.TestCase):
    """The machine as a test."""
