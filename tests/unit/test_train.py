"""Which changes a train leaves in, and what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fanout.orchestrator.jobs.result import Verification
from fanout.orchestrator.landing.train import Train

EIGHT = list("abcdefgh")


@dataclass
class Files:
    """Files that pass a verification if `is_green` says so of what is in, in order."""

    is_green: Callable[[tuple[str, ...]], bool]
    conflicts: frozenset[frozenset[str]] = frozenset()
    """Pairs that conflict."""
    inside: list[str] = field(default_factory=list)
    verified: list[tuple[str, ...]] = field(default_factory=list)

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
        return Verification(command="check", exit_code=0 if self.is_green(tuple(job_ids)) else 1)


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


def test_files_that_fail_without_any_change_blame_none() -> None:
    files = Files(lambda _: False)
    train = land(files)
    assert files.inside == EIGHT
    assert train.failed_before is not None
    assert files.verified == [tuple(EIGHT), (), ()]


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
