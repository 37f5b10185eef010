"""Landing on a new branch: a commit for each job that brought changes.

Work tree, index and hooks are not touched. Only the creation of the branch, at the end, can be
seen; what a landing that is interrupted leaves are objects that Git removes some day.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import BlobMissing, InvalidJob, JobFailure, UnknownJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.landing.commit_message import commit_message
from fanout.orchestrator.landing.commit_tree import CommitTree, Entries, Mark
from fanout.orchestrator.landing.conflicts import ConflictingFile, collect
from fanout.orchestrator.workspace.code_in_folder import code_in_folder
from fanout.orchestrator.workspace.dry_run import DryRun
from fanout.orchestrator.workspace.hold_back import HoldBack, revealing_rules
from fanout.orchestrator.workspace.merge import FolderMerge
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.repositories.commits import (
    BranchRefused,
    Commits,
    NewCommit,
    NewCommits,
    Person,
    committer_of,
    is_branch_name,
    open_commits,
)
from fanout.orchestrator.workspace.repositories.configuration import Unreadable
from fanout.orchestrator.workspace.repositories.merge_settings import personal_merge_settings
from fanout.orchestrator.workspace.repositories.repository import (
    Repository,
    enclosing_repository,
    head_commit,
)


class BranchUnusable(JobFailure):
    """A branch cannot be created in a folder; the text says what to do."""


class LandedElsewhere(BranchUnusable):
    """A branch of that name has appeared since the run started."""


class Jobs(Protocol):
    """What a landing reads of jobs; `JobClient` documents the methods."""

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record."""

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result."""

    def events(self, job_id: str, *, follow: bool = True) -> AsyncIterator[JournalEvent]:
        """Yield the events of a job's journal."""

    def changes(self, job_id: str) -> AbstractAsyncContextManager[ChangeBundle]:
        """Open a job's change bundle."""


@dataclass(frozen=True)
class LandedCommit:
    """A commit of a landing."""

    id: str
    job_id: str
    subject: str


Outcome = Literal["created", "before", "nothing"]


@dataclass(frozen=True)
class BranchReport:
    """What a landing on a branch did."""

    branch: str
    outcome: Outcome
    """`before`: an earlier landing of the same job created it; `nothing`: there was nothing to
    commit, so no branch was created."""
    merge: MergeReport
    """The outcome of each change of the whole job, against the commit's files."""
    commits: tuple[LandedCommit, ...] = ()
    conflicts: tuple[ConflictingFile, ...] = ()
    """The versions of what conflicts."""

    @property
    def tip(self) -> str | None:
        """The id of the last commit."""
        return self.commits[-1].id if self.commits else None


def base_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder; None without one."""
    try:
        repository = enclosing_repository(folder)
        return head_commit(repository) if repository else None
    except (Unreadable, OSError):
        return None


def require_branch(folder: Path, branch: str) -> str:
    """Require that a branch can be created, and return the commit that it would start from.

    Raises:
        BranchUnusable: It cannot; the text says why.
    """
    repository, commit = _repository(folder, branch)
    try:
        with open_commits(repository) as commits:
            commits.require_free(branch, commit)
    except BranchRefused as error:
        raise BranchUnusable(
            f"The branch {branch} cannot be created in {repository.work_tree} ({error}): choose "
            "another name."
        ) from error
    except Unreadable as error:
        raise _unusable(repository, error) from error
    return commit


def _repository(folder: Path, branch: str) -> tuple[Repository, str]:
    """Return a folder's repository and its commit.

    Raises:
        BranchUnusable: There is none, or the name is not one.
    """
    try:
        if not is_branch_name(branch):
            raise BranchUnusable(f"{branch!r} is no name for a branch.")
        repository = enclosing_repository(folder)
        commit = head_commit(repository) if repository else None
    except (Unreadable, OSError) as error:
        raise BranchUnusable(f"Git cannot use {folder} ({error}).") from error
    if repository is None:
        raise BranchUnusable(
            f"{folder} is in no Git repository, so there is nothing to make a branch of: leave "
            "--branch out, or `git init` it and commit its files first."
        )
    if commit is None:
        raise BranchUnusable(
            f"The repository {repository.work_tree} has no commit that a branch could start from: "
            "commit its files first, or leave --branch out."
        )
    return repository, commit


def _unusable(repository: Repository, error: Exception) -> BranchUnusable:
    return BranchUnusable(f"Git cannot use the repository {repository.work_tree} ({error}).")


@dataclass(frozen=True)
class BranchLanding:
    """Where and how the changes of jobs become commits."""

    workspace: Path
    branch: str
    base: str | None
    """The commit that the branch starts from; None: the one that is checked out."""
    include_executable_config: bool = False


async def land_on_branch(
    jobs: Jobs, job_ids: Sequence[str], landing: BranchLanding
) -> BranchReport:
    """Create a branch with the changes of jobs: a commit for each job of theirs with changes.

    Args:
        jobs: Reads the jobs.
        job_ids: Jobs that have ended, in the order in which their changes follow each other.
        landing: Where.

    Raises:
        BranchUnusable: The branch cannot be created; nothing has changed.
        JobFailure: The changes of one of the jobs cannot be read.
    """
    repository, head = await asyncio.to_thread(_repository, landing.workspace, landing.branch)
    base = landing.base or head
    try:
        async with _opened(repository) as commits:
            before = BranchReport(landing.branch, "before", MergeReport())
            if await asyncio.to_thread(_has_landed, commits, landing.branch, job_ids[-1]):
                return before
            with commits.new_commits(base) as new:
                building = await asyncio.to_thread(_Building, commits, base, landing, new)
                walk = _Walk(jobs, building)
                merged = [await walk.add(job_id, whole=True) for job_id in job_ids]
                await asyncio.to_thread(building.write)
            if await asyncio.to_thread(building.is_tip_of, landing.branch, job_ids[-1]):
                return before
            made = tuple(building.commits)
            if made:
                await asyncio.to_thread(commits.create, landing.branch, made[-1].id)
            outcome: Outcome = "created" if made else "nothing"
            return BranchReport(landing.branch, outcome, _joined(merged), made, building.conflicts)
    except BranchRefused as error:
        raise LandedElsewhere(
            f"The branch {landing.branch} cannot be created in {repository.work_tree} ({error}). "
            f"Nothing is lost: fanout apply {job_ids[-1]} --into {landing.workspace} --branch OTHER"
        ) from error
    except Unreadable as error:
        raise _unusable(repository, error) from error


@asynccontextmanager
async def _opened(repository: Repository) -> AsyncIterator[Commits]:
    stack = ExitStack()
    try:
        yield await asyncio.to_thread(stack.enter_context, open_commits(repository))
    finally:
        await asyncio.to_thread(stack.close)


def _joined(reports: Sequence[MergeReport | None]) -> MergeReport:
    """Return the outcome of several merges as one."""
    fields = {
        name: tuple(entry for report in reports if report for entry in getattr(report, name))
        for name in MergeReport.model_fields
    }
    return MergeReport.model_validate(fields)


def _has_landed(commits: Commits, branch: str, job_id: str) -> bool:
    """Return whether a branch has the commit of a job."""
    tip = commits.tip(branch)
    return tip is not None and job_id in commits.trailers(tip, "Fanout-Job")


@dataclass
class _Walk:
    """Adds jobs and their children, depth first."""

    jobs: Jobs
    building: _Building
    seen: set[str] = field(default_factory=set)

    async def add(self, job_id: str, *, whole: bool = False) -> MergeReport | None:
        """Add the commits of a job: those of its children, then its own with the rest.

        A child that conflicts with the files at that place gets none: its changes are in its
        parent's commit.

        Args:
            job_id: The job.
            whole: It is not a child: what does not conflict is committed, and failures are raised.

        Returns:
            What was merged; None for a child without a commit.
        """
        self.seen.add(job_id)
        building, start = self.building, self.building.tree.mark()
        try:
            record, result = await self.jobs.get(job_id), await self.jobs.result(job_id)
            if whole and result is not None and result.changes is None:
                return None
            async with self.jobs.changes(job_id) as bundle:
                target, report = await asyncio.to_thread(building.merge, bundle, whole=whole)
        except (UnknownJob, InvalidJob, BlobMissing):
            if whole:
                raise
            return None
        if target is None:
            return None
        for child in await self._children(job_id):
            if child not in self.seen:
                await self.add(child)
        summary = result.summary if result else ""
        await asyncio.to_thread(building.commit, start, target, record, summary)
        return report

    async def _children(self, job_id: str) -> list[str]:
        """Return the children whose changes are in a job's files, in the order of their merges."""
        merged: dict[str, bool] = {}
        async for event in self.jobs.events(job_id, follow=False):
            if event.type is EventType.CHILD_LANDED:
                child = str(event.data.get("id"))
                merged.pop(child, None)
                merged[child] = event.data.get("outcome") == "in"
        return [child for child, is_in in merged.items() if is_in]


class _Building:
    """Commits on top of each other; blocks."""

    def __init__(
        self, commits: Commits, base: str, landing: BranchLanding, new: NewCommits
    ) -> None:
        workspace = str(landing.workspace.resolve())
        self._git = commits
        self._landing = landing
        self._new = new
        self.tree = CommitTree(commits, base, workspace, new)
        self._tip = base
        self._planned: list[tuple[str, str]] = []
        """Job and subject of each commit."""
        self._code = (
            None if landing.include_executable_config else code_in_folder(landing.workspace)
        )
        self._committer = committer_of(commits)
        self._personal = personal_merge_settings(landing.workspace)
        self._left_out: set[str] = set()
        self.commits: list[LandedCommit] = []
        self.conflicts: tuple[ConflictingFile, ...] = ()

    def is_tip_of(self, branch: str, job_id: str) -> bool:
        """Return whether a branch has these files by an earlier landing of a tree's root.

        The root may have no commit of its own, if its children brought all of it.
        """
        tip = self._git.tip(branch)
        if tip is None or self._git.tree_of(tip) != self._git.tree_of(self._tip):
            return False
        return job_id in self._git.trailers(tip, "Fanout-Tree")

    def merge(self, bundle: ChangeBundle, *, whole: bool) -> tuple[Entries | None, MergeReport]:
        """Merge a bundle into the tree; no entries if it is a child's and does not fit."""
        if not whole:
            kept = [file for file in bundle.changes.files if file.path not in self._left_out]
            bundle.changes = bundle.changes.model_copy(update={"files": tuple(kept)})
        self.tree.prepare(bundle)
        arriving = [file.path for file in bundle.changes.files if file.after is not None]
        rule = (
            None
            if self._landing.include_executable_config
            else HoldBack(
                self.tree.names,
                self._code,
                arriving,
                revealing_rules(self._landing.workspace, bundle),
            )
        )
        folder = DryRun(self.tree)
        report = FolderMerge(
            *(folder, bundle, rule), personal=self._personal, added=self.tree.added
        ).run()
        if not whole and (report.conflicts or report.failed):
            return None, report
        if whole:
            left = (report.conflicts, report.refused, report.failed, report.held_back)
            self.conflicts += collect(bundle, report.conflicts, self.tree.find)
            self._left_out = {one.path for some in left for one in some}
        return self.tree.entries_for(folder.changes), report

    def commit(self, start: Mark, target: Entries, record: JobRecord, summary: str) -> None:
        """Commit what a job's changes are since a mark, if anything is left of them."""
        changed = self.tree.moved_to(start, target)
        if not changed:
            return
        author = Person(record.agent, f"{record.agent}@fanout.invalid")
        message = commit_message(record, summary)
        new = NewCommit(
            message=message,
            author=author,
            committer=self._committer or author,
            seconds=int(record.finished_at or record.submitted_at),
        )
        self._new.add(changed, new)
        self._planned.append((record.id, message.partition("\n")[0]))

    def write(self) -> None:
        """Store the commits."""
        ids = self._new.write()
        self.commits = [
            LandedCommit(identity, job_id, subject)
            for identity, (job_id, subject) in zip(ids, self._planned, strict=True)
        ]
        self._tip = ids[-1] if ids else self._tip
