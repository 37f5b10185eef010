"""The proofs about outages find what was planted, and nothing that another fault may have done."""

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_result
from tests.chaos import outages
from tests.chaos.evidence import JobEvidence
from tests.chaos.faults.base import Hit
from tests.chaos.injector import Injected
from tests.unit.chaos.planted import JOB, Journal, evidence

PROCESSES = [["w1", "w1-again"], ["w2"]]


def outage(kind: str = "redis hangs", at: float = 2.5, until: float = 3.5) -> Injected:
    return Injected(kind, at, Hit(everybody=True), healed_at=until)


def hit(attempt: int) -> JobEvidence:
    """A job that was at work from second 2 to 4, and was then queued with this attempt's number."""
    journal = Journal().state("queued", 0).state("running", worker="w1").ready()
    journal.state("queued", attempt).state("running", 2, worker="w2").ready(2, resumed=True)
    return evidence(journal.state("succeeded", 2))


def test_an_attempt_that_an_outage_used_up_is_found_and_one_that_was_given_back_is_not() -> None:
    faults = [outage()]

    assert outages.cost_no_attempt({JOB: hit(0)}, faults, PROCESSES) == []
    (found,) = outages.cost_no_attempt({JOB: hit(1)}, faults, PROCESSES)
    assert found == f"{JOB}: attempt 1 was used up although only this met it: redis hangs"


def test_an_outage_that_ends_a_job_for_good_is_found() -> None:
    journal = Journal().state("queued", 0).state("running", worker="w1").state("failed")
    lost = {"type": "AttemptsUsedUp", "message": "lost", "retryable": False}
    job = evidence(journal, result=make_result(JOB, JobState.FAILED, error=lost, attempts=1))

    assert outages.cost_no_attempt({JOB: job}, [outage()], PROCESSES)


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        (Hit(workers=["w1-again"]), False),
        (Hit(workers=["w2"]), True),
        (Hit(jobs=[JOB]), False),
        (Hit(jobs=["another"]), True),
        (Hit(), False),
    ],
    ids=["its worker", "another worker", "its sandbox", "another sandbox", "what all use"],
)
def test_an_attempt_that_another_fault_can_have_hit_says_nothing(
    other: Hit, *, is_found: bool
) -> None:
    faults = [outage(), Injected("another", 1.0, other, healed_at=1.0)]

    assert bool(outages.cost_no_attempt({JOB: hit(1)}, faults, PROCESSES)) is is_found


def test_without_an_engine_only_attempts_before_their_sandbox_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outages, "COST_NOTHING", outages.WITHOUT_SANDBOX)
    journal = Journal().state("queued", 0).state("running", worker="w1").state("queued", 1)
    never_ready = evidence(journal.state("running", 2, worker="w2").ready(2).state("succeeded", 2))
    faults = [outage("engine stays away", 1.5, 2.5)]

    assert outages.cost_no_attempt({JOB: hit(1)}, faults, PROCESSES) == []
    assert outages.cost_no_attempt({JOB: never_ready}, faults, PROCESSES)


@pytest.mark.parametrize(("healed_at", "is_found"), [(4.5, False), (3.5, True)])
def test_jobs_that_freeze_while_redis_is_full_are_found(
    healed_at: float, *, is_found: bool
) -> None:
    journal = Journal().state("queued", 0).state("running", worker="w1").ready().state("succeeded")
    jobs = {JOB: evidence(journal)}
    full = outage("redis full", 2.5, healed_at)

    assert bool(outages.frozen_while_full(jobs, [full], PROCESSES)) is is_found
