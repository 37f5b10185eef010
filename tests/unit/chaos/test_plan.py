"""A seed is a plan."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.chaos.plan import (
    AFTERMATH_SECONDS,
    FAULT_KINDS,
    JOB_KINDS,
    QUIET_SECONDS,
    planned_faults,
    planned_jobs,
)


def test_a_seed_always_plans_the_same() -> None:
    assert list(islice(planned_jobs(7), 500)) == list(islice(planned_jobs(7), 500))
    assert planned_faults(7, 600) == planned_faults(7, 600)
    assert planned_faults(7, 600) != planned_faults(8, 600)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = planned_faults(7, 300), planned_faults(7, 900)
    assert long[: len(short)] == short


def test_every_kind_comes_and_ids_sort_by_number() -> None:
    jobs = list(islice(planned_jobs(7), 2000))
    assert {job.kind for job in jobs} == set(JOB_KINDS)
    assert [job.id for job in jobs] == sorted({job.id for job in jobs})
    faults = planned_faults(7, 3600)
    assert {fault.kind for fault in faults} == set(FAULT_KINDS)
    assert all(fault.at < 3600 - QUIET_SECONDS for fault in faults)


@pytest.mark.parametrize(
    ("seed", "minutes", "kinds"),
    [
        pytest.param(4, 4, set(FAULT_KINDS), id="CI_FULL=1"),
        pytest.param(
            2668, 2, {"worker killed", "redis killed", "network cut"}, id="without CI_FULL"
        ),
    ],
)
def test_a_run_of_ci_has_its_faults_and_the_first_outages_of_each_kind_alone(
    seed: int, minutes: int, kinds: set[str]
) -> None:
    faults = planned_faults(seed, minutes * 60)

    assert {fault.kind for fault in faults} >= kinds
    for kind in (name for name, kind in FAULT_KINDS.items() if kind.first_alone):
        first = next(fault for fault in faults if fault.kind == kind)
        over = first.at + first.seconds + AFTERMATH_SECONDS
        assert not [fault for fault in faults if first.at < fault.at < over], kind


def test_without_an_engine_no_fault_needs_one() -> None:
    kinds = {fault.kind for fault in planned_faults(7, 3600, docker=False)}
    assert kinds == {name for name, kind in FAULT_KINDS.items() if not kind.needs_docker}
