"""The train: changes of several jobs are landed one after the other, and verified together.

Changes that pass together cost one verification. If it fails, and the files passed before, the
first change that breaks them is found by bisection and left out, until the others pass together.

If the files failed before, the train looks for changes that make them pass: without one of the
changes, and with halves of them. Changes that pass are landed, and those that would make them fail
again are left out. If nothing passes, the failing tests are compared, where the output names them:
a change that adds none is not blamed. Such a train verifies at most 2·log2 N + 4 times for N
changes.

A verification may give two answers about the same files. Such a verification is reported, and its
answer alone blames no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, takewhile
from typing import Generic, Protocol, TypeVar

from ..jobs.result import Verification
from .failing_tests import FailingTest, failing_tests

MAX_LEFT_OUT_ONE_BY_ONE = 8
"""Changes that are each left out once in a train that starts red: for more of them, that alone
would take more than 2·log2 N + 4 verifications."""

Conflicts = TypeVar("Conflicts")
Conflicts_co = TypeVar("Conflicts_co", covariant=True)


class LandingFiles(Protocol[Conflicts_co]):
    """The files in which a train lands. The merged changes form a stack."""

    async def put_in(self, job_id: str) -> Conflicts_co | None:
        """Merge the changes of a job on top.

        Returns:
            None, or the conflicts; then no change is merged.
        """

    async def take_out(self, depth: int) -> None:
        """Take out the changes that were put in last until that many are left."""

    async def verify(self, job_ids: Sequence[str]) -> Verification:
        """Verify the files, which have the changes of these jobs."""


@dataclass(frozen=True)
class Outcome(Generic[Conflicts]):
    """What became of the changes of one job."""

    is_in: bool
    conflicts: Conflicts | None = None
    """The conflicts with the merged changes; None: there are none."""
    verification: Verification | None = None
    """The one that passed with the changes, or the one that failed because of them."""
    is_cause: bool = False
    """Whether the files that failed with it were found to be better without it. Otherwise it is
    left out because they fail with it and other changes, and no verification was left for a further
    search."""
    new_failures: frozenset[FailingTest] = frozenset()
    """The tests that passed before the train and fail with it, where the output names them."""


@dataclass
class Train(Generic[Conflicts]):
    """One train.

    Args:
        files: The target. At the end they pass, if they passed before or if some of the changes
            make them pass.
    """

    files: LandingFiles[Conflicts]
    outcomes: dict[str, Outcome[Conflicts]] = field(default_factory=dict)
    """The outcomes by job."""
    is_flaky: bool = False
    """Whether the verification gave two answers about the same files."""
    failed_before: Verification | None = None
    """The verification of the files without any of the changes, if it failed."""
    _inside: list[str] = field(default_factory=list)
    _answers: dict[frozenset[str], Verification] = field(default_factory=dict)
    """The newest answer about each state of the files, by the merged changes."""
    _last: frozenset[str] | None = None
    """The state that was verified last."""
    _runs: int = 0
    _max_runs: float = math.inf
    _takes_no_worse: bool = False
    """Whether failing files are accepted, if every test that passed before still passes."""

    async def run(self, job_ids: Sequence[str]) -> None:
        """Land the changes of these jobs; afterwards `outcomes` has one for each."""
        await self._admit(job_ids)
        blocked = [job_id for job_id in job_ids if self.outcomes[job_id].conflicts is not None]
        is_room = any(self._is_taken_out(job_id) for job_id in job_ids)
        if blocked and is_room:  # they may have conflicted with what is out now
            await self._admit(blocked)

    @property
    def verification(self) -> Verification | None:
        """The newest answer about the current files; None if nothing was verified."""
        return self._answers.get(frozenset(self._inside))

    @property
    def is_compared(self) -> bool:
        """Whether the failing tests before the train and at its end are known, if both fail."""
        last = self.verification
        return last is not None and last.exit_code != 0 and self._is_worse(last) is not None

    def _is_taken_out(self, job_id: str) -> bool:
        outcome = self.outcomes[job_id]
        return not outcome.is_in and outcome.conflicts is None

    async def _admit(self, job_ids: Sequence[str]) -> None:
        """Put in these changes, and keep those that pass with the changes before them."""
        depth = len(self._inside)
        entered = [job_id for job_id in job_ids if await self._put_in(job_id)]
        if not entered:
            return
        verification = self._known_failure() or await self._verify()
        if verification is None:
            await self._leave_out(entered)
        elif self._accepts(verification):
            self._accept(entered, verification)
        elif depth == 0 and await self._fails_unchanged():
            await self._search(entered)
        else:
            await self._bisect(entered, verification)

    def _known_failure(self) -> Verification | None:
        """Return the earlier failure of these files; blamed changes are verified again."""
        known = self._answers.get(frozenset(self._inside))
        is_enough = known is not None and not self._accepts(known) and not self.is_flaky
        return known if is_enough else None

    async def _fails_unchanged(self) -> bool:
        """Return whether the files fail without any change; from then on runs are limited."""
        if frozenset() in self._answers:
            return False
        await self._take_out(0)
        before = await self._verify()
        if before is None or before.exit_code == 0:
            return False
        self.failed_before = before
        return True

    async def _bisect(self, entered: Sequence[str], failure: Verification) -> None:
        """Admit the changes before the first one that breaks the files, and those after it.

        Args:
            entered: Changes that do not conflict, with which the files fail.
            failure: That verification.
        """
        depth = self._count_earlier(entered)
        passing, failing = 0, len(entered)
        while failing - passing > 1:
            middle = (passing + failing) // 2
            await self._arrange([*self._inside[:depth], *entered[:middle]])
            verification = await self._verify()
            if verification is None:
                await self._arrange([*self._inside[:depth], *entered[:passing]])
                await self._leave_out(entered[passing:])
                return
            if self._accepts(verification):
                self._accept(entered[:middle], verification)
                passing = middle
            else:
                failing, failure = middle, verification
        await self._arrange([*self._inside[:depth], *entered[:passing]])
        await self._blame(entered[passing], failure)
        await self._admit(entered[failing:])

    async def _blame(self, job_id: str, failure: Verification) -> None:
        """Leave a change out, unless one of both answers differs when they are repeated.

        The files do not have it then.
        """
        if self._last != frozenset(self._inside):
            await self._verify()
        await self._put_in(job_id)
        verification = await self._verify() or failure
        if self._accepts(verification):
            self._accept([job_id], verification)
            return
        await self._take_out(len(self._inside) - 1)
        self._outcome_out(job_id, verification, is_cause=True)

    async def _search(self, job_ids: Sequence[str]) -> None:
        """Land changes that make failing files pass, else changes that make them no worse."""
        self._max_runs = most_runs(len(job_ids))
        for chosen in self._candidates(job_ids):
            verification = await self._verified(chosen)
            if verification is None:
                continue
            if verification.exit_code == 0:
                await self._take(chosen, verification, job_ids)
                return
        await self._land_no_worse(job_ids)

    def _candidates(self, job_ids: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield parts of changes that may pass, the likeliest first."""
        families = [_without_one(job_ids), _halves(job_ids)]
        breaks = self._is_worse(self._answers[frozenset(job_ids)])
        # The changes at a failure show which ones add failing tests: halves show that sooner.
        if len(job_ids) > (MAX_LEFT_OUT_ONE_BY_ONE // 2 if breaks else MAX_LEFT_OUT_ONE_BY_ONE):
            families.reverse()
        yield from families[0]
        suspects = self._suspects(job_ids)
        if suspects:
            yield [job_id for job_id in job_ids if job_id not in suspects]
        if not breaks:
            yield from families[1]

    async def _land_no_worse(self, job_ids: Sequence[str]) -> None:
        """Land as many changes as possible without a new failing test, or all if none is known."""
        self._takes_no_worse = True
        together = self._answers[frozenset(job_ids)]
        tried = [
            [job_id for job_id in job_ids if job_id in inside]
            for inside, answer in self._answers.items()
            if inside and inside <= {*job_ids} and self._accepts(answer)
        ]
        best = max(tried, key=len, default=[])
        if not best and self._is_worse(together) is None:
            best = [*job_ids]
        if len(best) == len(job_ids):  # no change is blamed: a last run gives a second answer
            await self._verified([])
        await self._take(best, self._answers[frozenset(best)], job_ids)

    async def _take(
        self, chosen: Sequence[str], verification: Verification, job_ids: Sequence[str]
    ) -> None:
        """Land some of the changes, and then those of the others that are accepted with them."""
        await self._arrange(chosen)
        self._accept(chosen, verification)
        await self._admit([job_id for job_id in job_ids if job_id not in chosen])

    async def _verified(self, chosen: Sequence[str]) -> Verification | None:
        """Return the answer about some of the changes; None if they conflict or no run is left."""
        known = self._answers.get(frozenset(chosen))
        if known is not None and chosen:
            return known
        if self._runs >= self._max_runs or not await self._arrange(chosen):
            return None
        return await self._verify()

    def _accepts(self, verification: Verification) -> bool:
        if verification.exit_code == 0:
            return True
        return self._takes_no_worse and self._is_worse(verification) is False

    def _is_worse(self, verification: Verification) -> bool | None:
        """Return whether a test fails that passed before the train; None: that is not known."""
        if self.failed_before is None or verification.exit_code == 0:
            return False
        before, now = failing_tests(self.failed_before), failing_tests(verification)
        if before is None or now is None or not before.complete:
            return None
        if now.new_since(before):
            return True
        return False if now.is_no_worse_than(before) else None

    def _suspects(self, job_ids: Sequence[str]) -> set[str]:
        """Return the changes that alone explain a new failing test: it fails exactly with them."""
        assert self.failed_before is not None  # noqa: S101 - the files failed before
        before = failing_tests(self.failed_before)
        together = failing_tests(self._answers[frozenset(job_ids)])
        if before is None or together is None:
            return set()
        suspects: set[str] = set()
        for test in together.new_since(before):
            failing = {inside: self._has_failed(test, inside) for inside in self._answers}
            known = {inside: failed for inside, failed in failing.items() if failed is not None}
            explaining = [
                job_id
                for job_id in job_ids
                if all((job_id in inside) == failed for inside, failed in known.items())
            ]
            if len(explaining) == 1:
                suspects.update(explaining)
        return suspects

    def _has_failed(self, test: FailingTest, inside: frozenset[str]) -> bool | None:
        """Return whether a test failed with some of the changes; None: it may not have run."""
        answer = self._answers[inside]
        if answer.exit_code == 0:
            return False
        found = failing_tests(answer)
        if found is None or (test not in found.failing and test.group not in found.complete):
            return None
        return test in found.failing

    def _new_failures(self, verification: Verification) -> frozenset[FailingTest]:
        before = failing_tests(self.failed_before) if self.failed_before else None
        now = failing_tests(verification)
        return frozenset() if before is None or now is None else now.new_since(before)

    def _accept(self, job_ids: Sequence[str], verification: Verification) -> None:
        for job_id in job_ids:
            self.outcomes[job_id] = Outcome(is_in=True, verification=verification)

    async def _leave_out(self, job_ids: Sequence[str]) -> None:
        """Leave out changes that are only known to make the files fail together."""
        await self._arrange([job_id for job_id in self._inside if job_id not in job_ids])
        for job_id in job_ids:
            known = [one for inside, one in self._answers.items() if job_id in inside]
            failures = [one for one in known if not self._accepts(one)]
            self._outcome_out(job_id, failures[-1], is_cause=False)

    def _outcome_out(self, job_id: str, failure: Verification, *, is_cause: bool) -> None:
        new = self._new_failures(failure)
        self.outcomes[job_id] = Outcome(
            is_in=False, verification=failure, is_cause=is_cause, new_failures=new
        )

    def _count_earlier(self, entered: Sequence[str]) -> int:
        """Return how many changes were merged before these."""
        return len([job_id for job_id in self._inside if job_id not in entered])

    async def _arrange(self, job_ids: Sequence[str]) -> bool:
        """Merge exactly these changes; if they conflict, merge none and return False."""
        pairs = zip(self._inside, job_ids, strict=False)
        common = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        await self._take_out(common)
        for job_id in job_ids[common:]:
            if await self.files.put_in(job_id) is not None:
                await self._take_out(0)
                return False
            self._inside.append(job_id)
        return True

    async def _put_in(self, job_id: str) -> bool:
        conflicts = await self.files.put_in(job_id)
        if conflicts is not None:
            self.outcomes[job_id] = Outcome(is_in=False, conflicts=conflicts)
            return False
        self._inside.append(job_id)
        return True

    async def _take_out(self, depth: int) -> None:
        if depth < len(self._inside):
            await self.files.take_out(depth)
            del self._inside[depth:]

    async def _verify(self) -> Verification | None:
        """Verify the current files, and compare the answer with an earlier one about them.

        Returns:
            None if the train has no run left.
        """
        if self._runs >= self._max_runs:
            return None
        self._runs += 1
        verification = await self.files.verify(self._inside)
        inside = frozenset(self._inside)
        earlier = self._answers.get(inside, verification)
        self.is_flaky |= (earlier.exit_code == 0) != (verification.exit_code == 0)
        self._answers[inside] = verification
        self._last = inside
        return verification


def most_runs(changes: int) -> int:
    """Return how often a train of that many changes verifies at most, if it starts red."""
    return math.floor(2 * math.log2(changes)) + 4


def _without_one(job_ids: Sequence[str]) -> list[list[str]]:
    """Return the changes without each one, the last one first: earlier ones have priority."""
    if len(job_ids) < 2:  # noqa: PLR2004 - without the only one nothing is left
        return []
    return [[one for one in job_ids if one != left_out] for left_out in reversed(job_ids)]


def _halves(job_ids: Sequence[str]) -> list[list[str]]:
    """Return the fewest halves of the changes that distinguish any two, in both directions.

    For each two changes there is a half that has the first and not the second. So if one change is
    needed and another one breaks it, one of the halves passes. Each change is in half of the sets,
    by a choice of its own: that is the smallest such family (Sperner; Spencer 1970).
    """
    if len(job_ids) < 2:  # noqa: PLR2004 - one cannot be halved
        return []
    count = next(n for n in range(2, len(job_ids) + 2) if math.comb(n, n // 2) >= len(job_ids))
    choices = islice(combinations(range(count), count // 2), len(job_ids))
    chosen = [frozenset(choice) for choice in choices]
    return [
        [job_id for job_id, choice in zip(job_ids, chosen, strict=True) if number in choice]
        for number in range(count)
    ]
