"""Recoveries are read from journals."""

from __future__ import annotations

import pytest

from tests.chaos.faults.base import Hit
from tests.chaos.injector import Injected
from tests.chaos.recoveries import percentile, recoveries
from tests.unit.chaos.planted import JOB, Journal, evidence


def test_a_recovery_lasts_from_the_fault_until_the_job_is_at_work_again() -> None:
    journal = Journal().state("queued", 0).state("running", worker="w1").ready()
    journal.state("queued").state("running", 2, worker="w2").ready(2, resumed=True).state(
        "succeeded", 2
    )
    killed = Injected("worker killed", 2.5, Hit(workers=["w1"]), healed_at=2.5)
    other = Injected("worker killed", 5.5, Hit(workers=["w1"]), healed_at=5.5)
    job = evidence(journal)

    (alone,) = recoveries([killed], {JOB: job})
    assert (alone.kind, alone.seconds, alone.alone) == ("worker killed", 2.5, True)
    (among,) = recoveries([killed, Injected("disk full", 4.0, Hit(), healed_at=4.5)], {JOB: job})
    assert not among.alone
    assert recoveries([other], {JOB: job}) == []  # it was another's then, and came to its end


@pytest.mark.parametrize(("share", "value"), [(0.5, 51), (0.95, 96), (1, 100)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile(range(1, 101), share) == value
    assert percentile([], share) == 0
