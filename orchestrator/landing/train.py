"""The train: changes of several jobs are landed one after the other, and verified together.

What is green together costs one verification. If that fails, the changes are taken out again and
halved until those that break it are known; the others stay. So the files pass the verification
whenever they passed it before.

A verification may give two answers about the same files. Such a one is reported, and nothing is
blamed on its word alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fanout.orchestrator.jobs.result import Verification

Conflicts = TypeVar("Conflicts")
Conflicts_co = TypeVar("Conflicts_co", covariant=True)


class LandingFiles(Protocol[Conflicts_co]):
    """The files in which a train lands. The changes that are in form a stack."""

    async def put_in(self, job_id: str) -> Conflicts_co | None:
        """Merge the changes of a job on top.

        Returns:
            None, or the conflicts; nothing of the changes is in then.
        """

    async def take_out(self, depth: int) -> None:
        """Take out what was put in last until that many are left."""

    async def verify(self, job_ids: Sequence[str]) -> Verification:
        """Verify the files, which have the changes of these jobs."""


@dataclass(frozen=True)
class Outcome(Generic[Conflicts]):
    """What became of the changes of one job."""

    is_in: bool
    conflicts: Conflicts | None = None
    """With what is in; None when they do not conflict."""
    verification: Verification | None = None
    """The one that passed with the changes, or the one that failed because of them."""


@dataclass
class Train(Generic[Conflicts]):
    """One train.

    Args:
        files: Where it lands; at the end they have what is green together.
    """

    files: LandingFiles[Conflicts]
    outcomes: dict[str, Outcome[Conflicts]] = field(default_factory=dict)
    """By job."""
    is_flaky: bool = False
    """Whether the verification gave two answers about the same files."""
    failed_before: Verification | None = None
    """The verification of the files without any of the changes, if it failed twice: nothing can be
    blamed then, and all that does not conflict is in."""
    _inside: list[str] = field(default_factory=list)
    _answers: dict[tuple[str, ...], Verification] = field(default_factory=dict)
    """The newest answer about each state of the files, by what was in."""

    async def run(self, job_ids: Sequence[str]) -> None:
        """Land the changes of these jobs; `outcomes` has one for each then."""
        await self._admit(job_ids)
        blocked = [job_id for job_id in job_ids if self.outcomes[job_id].conflicts is not None]
        is_room = any(self._is_taken_out(job_id) for job_id in job_ids)
        if blocked and is_room:  # they may have conflicted with what is out now
            await self._admit(blocked)

    def _is_taken_out(self, job_id: str) -> bool:
        outcome = self.outcomes[job_id]
        return not outcome.is_in and outcome.conflicts is None

    async def _admit(self, job_ids: Sequence[str]) -> None:
        """Put in these changes, and leave those in that are green with what was in before."""
        depth = len(self._inside)
        entered = [job_id for job_id in job_ids if await self._put_in(job_id)]
        if not entered:
            return
        verification = self._known_failure(entered) or await self._verify()
        if verification.exit_code == 0:
            self._accept(entered, verification)
            return
        await self._take_out(depth)
        if self._has_no_answer() and await self._fails_before():
            for job_id in entered:
                await self._put_in(job_id)
            self._accept(entered, verification)
        elif len(entered) == 1:
            await self._blame(entered[0], verification)
        else:
            middle = len(entered) // 2
            await self._admit(entered[:middle])
            await self._admit(entered[middle:])

    def _known_failure(self, entered: Sequence[str]) -> Verification | None:
        """Return the failure of these files from before, if it decides nothing but to halve."""
        known = self._answers.get(tuple(self._inside))
        is_enough = known is not None and known.exit_code != 0 and not self.is_flaky
        return known if is_enough and len(entered) > 1 else None

    def _has_no_answer(self) -> bool:
        """Whether the files have never been verified as they are."""
        return tuple(self._inside) not in self._answers

    async def _fails_before(self) -> bool:
        """Return whether the files fail without the changes too, asked twice."""
        for _ in range(2):
            verification = await self._verify()
            if verification.exit_code == 0:
                return False
        self.failed_before = verification
        return True

    async def _blame(self, job_id: str, verification: Verification) -> None:
        """Leave a change out if it is the cause: the files without it are verified again."""
        await self._verify()
        if self.is_flaky:
            await self._put_in(job_id)
            verification = await self._verify()
            if verification.exit_code == 0:
                self._accept([job_id], verification)
                return
            await self._take_out(len(self._inside) - 1)
        self.outcomes[job_id] = Outcome(is_in=False, verification=verification)

    def _accept(self, job_ids: Sequence[str], verification: Verification) -> None:
        for job_id in job_ids:
            self.outcomes[job_id] = Outcome(is_in=True, verification=verification)

    async def _put_in(self, job_id: str) -> bool:
        conflicts = await self.files.put_in(job_id)
        if conflicts is not None:
            self.outcomes[job_id] = Outcome(is_in=False, conflicts=conflicts)
            return False
        self._inside.append(job_id)
        return True

    async def _take_out(self, depth: int) -> None:
        await self.files.take_out(depth)
        del self._inside[depth:]

    async def _verify(self) -> Verification:
        """Verify the files as they are, and compare the answer with an earlier one about them."""
        verification = await self.files.verify(self._inside)
        earlier = self._answers.get(tuple(self._inside), verification)
        self.is_flaky |= (earlier.exit_code == 0) != (verification.exit_code == 0)
        self._answers[tuple(self._inside)] = verification
        return verification
