"""Which changes a train leaves in, and what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from fanout.orchestrator.jobs.result import Verification
from fanout.orchestrator.landing.train import MAX_LEFT_OUT_ONE_BY_ONE, Train, most_runs

EIGHT = list("abcdefgh")


@dataclass
class Files:
    """Files that pass a verification if `is_green` says so of what is in, in order."""

    is_green: Callable[[tuple[str, ...]], bool]
    conflicts: frozenset[frozenset[str]] = frozenset()
    """Pairs that conflict."""
    inside: list[str] = field(default_factory=list)
    verified: list[tuple[str, ...]] = field(default_factory=list)
    output: Callable[[tuple[str, ...]], str] = lambda _: ""

    @classmethod
    def of_tests(cls, failing: Callable[[tuple[str, ...]], set[str]]) -> Files:
        """Return files whose verification names the tests that fail."""

        def output(inside: tuple[str, ...]) -> str:
            names = sorted(failing(inside))
            return (
                "".join(f"FAILED t.py::{one}\n" for one in names) + f"{len(names)} failed in 0.1s"
            )

        return cls(lambda inside: not failing(inside), output=output)

    async def put_in(self, job_id: str) -> str | None:
        for other in self.inside:
            if frozenset({job_id, other}) in self.conflicts:
                return other
        self.inside.append(job_id)
        return None

    async def take_out(self, depth: int) -> None:
        del self.inside[depth:]

    async def verify(self, job_ids: Sequence[str]) -> Verification:
        assert self.inside == [*job_ids]
        self.verified.append(tuple(job_ids))
        is_green = self.is_green(tuple(job_ids))
        output = self.output(tuple(job_ids))
        return Verification(command="check", exit_code=0 if is_green else 1, output_tail=output)


def land(files: Files, job_ids: Sequence[str] = EIGHT) -> Train[str]:
    train = Train(files)
    asyncio.run(train.run(job_ids))
    assert files.inside == [one for one in files.inside if train.outcomes[one].is_in]
    assert {*files.inside} == {one for one in job_ids if train.outcomes[one].is_in}
    assert train.outcomes.keys() == {*job_ids}
    return train


def test_what_is_green_together_costs_one_verification() -> None:
    files = Files(lambda _: True)
    land(files)
    assert files.inside == EIGHT
    assert len(files.verified) == 1


def test_one_that_breaks_the_files_is_found_and_left_out() -> None:
    files = Files(lambda inside: "f" not in inside)
    train = land(files)
    assert files.inside == [one for one in EIGHT if one != "f"]
    verification = train.outcomes["f"].verification
    assert verification is not None
    assert verification.exit_code == 1
    assert len(files.verified) <= 10


def test_of_two_that_break_each_other_the_first_stays() -> None:
    files = Files(lambda inside: not {"b", "g"} <= {*inside})
    land(files)
    assert files.inside == [one for one in EIGHT if one != "g"]


def test_of_two_that_need_each_other_none_is_blamed_when_they_come_together() -> None:
    files = Files(lambda inside: ("a" in inside) == ("b" in inside))
    land(files)
    assert files.inside == EIGHT


def test_one_that_conflicts_with_what_is_taken_out_gets_its_place() -> None:
    files = Files(lambda inside: "a" not in inside, frozenset({frozenset({"a", "h"})}))
    train = land(files)
    assert files.inside == EIGHT[1:]
    assert train.outcomes["a"].conflicts is None


def test_one_that_conflicts_with_what_stays_says_so() -> None:
    files = Files(lambda _: True, frozenset({frozenset({"a", "h"})}))
    train = land(files)
    assert files.inside == EIGHT[:-1]
    assert train.outcomes["h"].conflicts == "a"
    assert len(files.verified) == 1


def test_files_that_fail_whatever_is_in_blame_none() -> None:
    files = Files(lambda _: False)
    train = land(files)
    assert files.inside == EIGHT
    assert train.failed_before is not None
    assert not train.is_compared
    assert files.verified[:2] == [tuple(EIGHT), ()]
    assert len(files.verified) == most_runs(8)


def test_of_two_that_repair_the_files_only_alone_the_first_lands() -> None:
    files = Files(lambda inside: len(inside) == 1)
    train = land(files, ["a", "b"])
    assert files.inside == ["a"]
    assert train.verification is not None
    assert train.verification.exit_code == 0
    assert train.outcomes["b"].is_cause
    assert len(files.verified) <= most_runs(2)


def test_what_repairs_the_files_only_without_one_lands_without_it() -> None:
    for bad in EIGHT:
        files = Files(lambda inside, bad=bad: set(inside) == {*EIGHT} - {bad})
        train = land(files)
        assert files.inside == [one for one in EIGHT if one != bad]
        assert train.failed_before is not None
        assert len(files.verified) <= most_runs(8)


@given(
    number=st.integers(2, 64),
    picks=st.tuples(st.integers(0, 63), st.integers(0, 63)),
)
def test_of_any_number_the_one_that_repairs_lands_and_the_one_that_breaks_does_not(
    number: int, picks: tuple[int, int]
) -> None:
    jobs = [f"job {index}" for index in range(number)]
    good, bad = (jobs[pick % number] for pick in picks)
    files = Files(lambda inside: good in inside and (good == bad or bad not in inside))
    train = land(files, jobs)
    assert good in files.inside
    assert good == bad or bad not in files.inside
    assert train.verification is not None
    assert train.verification.exit_code == 0
    if train.failed_before is not None:
        assert len(files.verified) <= most_runs(number)


@given(number=st.integers(1, 64), table=st.integers(min_value=0), density=st.integers(1, 4))
def test_a_train_that_starts_red_ends_green_if_it_saw_green_and_keeps_to_its_runs(
    number: int, table: int, density: int
) -> None:
    """Whatever the verification makes of the parts: it need not be monotone."""
    jobs = [f"job {index}" for index in range(number)]

    def is_green(inside: tuple[str, ...]) -> bool:
        return (
            0 < len(inside) < number
            and crc32(f"{table} {sorted(inside)}".encode()) % (density * 4) == 0
        )

    files = Files(is_green)
    train = land(files, jobs)
    assert len(files.verified) <= most_runs(number)
    assert is_green(tuple(files.inside)) == any(map(is_green, files.verified))
    assert train.verification is not None
    assert (train.verification.exit_code == 0) == is_green(tuple(files.inside))


def fails(*old: str, **breaks: str) -> Callable[[tuple[str, ...]], set[str]]:
    """Return which tests fail: these, and those that one of the changes breaks."""
    return lambda inside: {*old} | {test for job, test in breaks.items() if job in inside}


def test_a_change_that_makes_failing_files_no_worse_is_not_blamed() -> None:
    files = Files.of_tests(fails("old"))
    train = land(files)
    assert files.inside == EIGHT
    assert train.is_compared
    assert len(files.verified) <= most_runs(8)


def test_a_change_that_makes_failing_files_worse_is_left_out() -> None:
    for bad in EIGHT:
        files = Files.of_tests(fails("old", **{bad: "new"}))
        train = land(files)
        assert files.inside == [one for one in EIGHT if one != bad]
        assert [test.name for test in train.outcomes[bad].new_failures] == ["t.py::new"]
        assert train.is_compared
        assert len(files.verified) <= most_runs(8)


@given(
    number=st.integers(1, 64),
    bad=st.frozensets(st.integers(0, 63), max_size=5),
    repairs=st.frozensets(st.integers(0, 63), max_size=3),
)
def test_all_that_add_failing_tests_are_left_out_and_the_others_land(
    number: int, bad: frozenset[int], repairs: frozenset[int]
) -> None:
    jobs = [f"job_{index}" for index in range(number)]
    breaks = {jobs[one]: f"new {one}" for one in bad if one < number}
    repaired = {jobs[one] for one in repairs if one < number} - breaks.keys()

    def failing(inside: tuple[str, ...]) -> set[str]:
        left = {f"old {job}" for job in repaired if job not in inside}
        return fails("old", **breaks)(inside) | left

    files = Files.of_tests(failing)
    train = land(files, jobs)
    assert not {*files.inside} & breaks.keys()
    assert failing(tuple(files.inside)) <= failing(())
    assert len(files.verified) <= most_runs(number)
    few = 2  # changes of up to four are left out one by one, and no run is left for a second pair
    if number > MAX_LEFT_OUT_ONE_BY_ONE or len(breaks) <= few:
        assert {*files.inside} == {*jobs} - breaks.keys()
    assert train.failed_before is not None


def test_tests_that_did_not_run_before_blame_none() -> None:
    def output(inside: tuple[str, ...]) -> str:
        if "a" not in inside:
            return "ERROR t.py - SyntaxError\n!!! Interrupted: 1 error !!!\n1 error in 0.1s\n"
        return "FAILED t.py::old - no\n1 failed in 0.1s\n"

    files = Files(lambda _: False, output=output)
    train = land(files, ["a", "b"])
    assert files.inside == ["a", "b"]
    assert not train.is_compared


def test_a_failure_that_does_not_repeat_leaves_all_in_and_is_called_flaky() -> None:
    answers = iter([False])
    files = Files(lambda _: next(answers, True))
    train = land(files)
    assert files.inside == EIGHT
    assert train.is_flaky


def test_a_single_change_is_not_blamed_on_the_word_of_a_flaky_verification() -> None:
    answers = iter([False, True, False, False, True])  # with it, before, before: two answers
    files = Files(lambda _: next(answers, True))
    train = Train(files)
    asyncio.run(train.run(["a", "b"]))
    assert train.is_flaky
    assert files.inside == ["a", "b"]


@given(bad=st.frozensets(st.sampled_from(EIGHT)), pairs=st.frozensets(
    st.frozensets(st.sampled_from(EIGHT), min_size=2, max_size=2), max_size=3))  # fmt: skip
def test_what_is_left_is_green_and_no_more_fits(
    bad: frozenset[str], pairs: frozenset[frozenset[str]]
) -> None:
    def is_green(inside: tuple[str, ...]) -> bool:
        return not bad & {*inside} and not any(pair <= {*inside} for pair in pairs)

    files = Files(is_green)
    land(files)
    inside = tuple(files.inside)
    assert is_green(inside)
    assert not any(is_green((*inside, one)) for one in EIGHT if one not in inside)
