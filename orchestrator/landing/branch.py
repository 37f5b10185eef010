"""Landing on a new branch: a commit for each job that brought changes.

Work tree, index and hooks are not touched. Only the creation of the branch, at the end, is visible;
an interrupted landing leaves objects that Git removes later.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import posixpath
import re
import textwrap
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..git.text_merge import is_text
from ..jobs.changes import ChangeBundle, ChangedFile
from ..jobs.failures import BlobMissing, InvalidJob, JobFailure, UnknownJob
from ..jobs.state import JobRecord
from ..path_text import os_path, path_bytes, path_text
from ..valid_text import printable
from ..workspace.code_in_folder import code_in_folder
from ..workspace.dry_run import DryRun
from ..workspace.hold_back import HoldBack, revealing_rules
from ..workspace.merge import FolderMerge
from ..workspace.merge_report import MergeReport
from ..workspace.repositories.commits import (
    BranchRefused,
    Commits,
    NewCommit,
    NewCommits,
    Person,
    TreeEntry,
    is_branch_name,
    open_commits,
    read_committer,
)
from ..workspace.repositories.configuration import RepositoryUnreadable
from ..workspace.repositories.merge_settings import personal_merge_settings
from ..workspace.repositories.repository import (
    Repository,
    enclosing_repository,
    head_commit,
)
from ..workspace.rooted import Found, PathRefused, check_path, is_inside
from ..workspace.three_way import is_executable
from .conflicts import (
    ConflictingFile,
    LandedJobs,
    child_landings,
    collect,
)

SUBJECT_CHARACTERS = 72
"""The longest first line of a commit, as Git's own documentation advises."""

_OBEYED_LINE = re.compile(
    r"""
      [A-Za-z0-9]+(?:-[A-Za-z0-9]+)+\s*:                    # Signed-off-by: and other trailers
    | (?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|implement(?:s|ed)?|refs?|references|issues?|bug|cc
        |link|depends|related|relates|see)\s*:
    | BREAKING\ CHANGE\s*:
    | ---|\+\+\+\ |diff\ |Index:\ |@@\ |>?From\ |\*\*\*\ |\#\ -+\ >8   # patches, mails, scissors
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""The beginnings of lines that a program would obey."""

_CLOSES = re.compile(
    r"\b(close[sd]?|closing|fix(?:e[sd]|ing)?|resolve[sd]?|resolving|implement(?:s|ed|ing)?)"
    r"(\s*:?\s+|\s*:\s*)(?=(?:issues?\s+)?(?:[\w./-]*[#!]\d|GH-\d|[A-Z][A-Z0-9]+-\d|https?://))",
    re.IGNORECASE,
)
"""Words that close an issue of a hosting service or of a tracker, before its number."""

_SKIPS = re.compile(
    r"\[((?:skip|no)[ -](?:ci|actions|build)|(?:ci|actions|build)[ -]skip|skip[ -]\w+ci)\]"
    r"|\*\*\*(NO_CI)\*\*\*",
    re.IGNORECASE,
)
"""The marks with which a commit is not checked by a build service."""
Entries = Mapping[str, TreeEntry | None]
"""Path text in the repository -> its entry; None: it has none."""

MAX_KEPT_BYTES = 64 * 1024**2
"""The most bytes of contents that are kept for the next bundle: those of a usual landing."""

_LINK, _SUBMODULE = "120000", "160000"


def commit_message(record: JobRecord, summary: str) -> str:
    """Return a commit's message: a job's summary, and trailers that name the job.

    Args:
        record: The job.
        summary: What its agent says about the changes; its lines that programs would obey are
            quoted with `>`.
    """
    text = printable(summary).strip()
    text = _SKIPS.sub(lambda found: f"({found[1] or found[2]})", text)
    text = _CLOSES.sub(r"\1 - ", text)
    lines = text.split("\n")
    first = lines[0].lstrip("# \t").strip() or f"Job {record.id}"
    subject = textwrap.shorten(_quoted(first), SUBJECT_CHARACTERS, placeholder=" …")
    if len(subject) > SUBJECT_CHARACTERS or subject == "…":
        subject = f"{first[: SUBJECT_CHARACTERS - 1]}…"
    rest = lines if subject != first else lines[1:]
    body = "\n".join(map(_quoted, rest)).strip()
    trailers = f"Fanout-Job: {record.id}\nFanout-Tree: {record.root_id}"
    return "\n\n".join(filter(None, (subject, body, trailers)))


def _quoted(line: str) -> str:
    return f"> {line}" if _OBEYED_LINE.match(line.lstrip()) else line


@dataclass(frozen=True)
class Mark:
    """A state of a tree, which later changes can be compared with."""

    position: int


class CommitTree:
    """The files of a commit below a workspace, and the changes to them so far.

    Lines that end with CRLF in a work tree, and with LF in the commit, are shown as in the work
    tree, and written as in the commit.

    Args:
        commits: The repository.
        commit: The commit.
        workspace: The folder whose files the paths are relative to.
        new: The commits that are made of the changes.
    """

    def __init__(self, commits: Commits, commit: str, workspace: str, new: NewCommits) -> None:
        self._commits = commits
        self._new = new
        top = str(commits.repository.work_tree)
        inner = posixpath.relpath(workspace, top)
        self._prefix = "" if inner == "." else f"{path_text(inner)}/"
        self._workspace = workspace
        self._entries: dict[str, TreeEntry] = {}
        self._below: dict[str, set[str]] = {}
        self._log: list[tuple[str, TreeEntry | None]] = []
        self._filtered: dict[str, str] = {}
        self._asked: set[str] = set()
        """The paths whose filters are known."""
        self._crlf: set[str] = set()
        self._blobs: dict[str, bytes] = {}
        for path, entry in commits.read(commit).items():
            self._set(path, entry)
        self._committed = frozenset(self._entries)
        self._converts = commits.settings.get("core.autocrlf") in {"true", "input"}

    def prepare(self, bundle: ChangeBundle) -> None:
        """Read what a merge of a bundle needs, with few processes."""
        files = bundle.changes.files
        paths = {path for file in files for path in (file.path, file.from_path) if path}
        full = {self._prefix + path: path for path in filter(is_inside, paths)}
        unknown = {path: own for path, own in full.items() if path not in self._asked}
        if unknown:  # a child's paths are mostly those of its parent
            filtered = self._commits.filtered(unknown)
            self._filtered |= {unknown[path]: name for path, name in filtered.items()}
            self._asked |= unknown.keys()
        entries = [self._entries[path] for path in full if path in self._entries]
        self._keep_blobs([entry.id for entry in entries if entry.mode != _SUBMODULE])
        self._crlf = set()
        for file in files:
            if self._is_converted(file, bundle):
                self._crlf |= {file.path, file.from_path or file.path}

    def find(self, path: str) -> Found | None:
        """Return the entry at the path.

        Raises:
            PathRefused: It cannot be part of a commit of this repository.
        """
        self._require_own(path)
        entry = self._entries.get(self._prefix + path)
        if entry is None:
            is_directory = self._prefix + path in self._below
            return Found(kind="directory", mode=0o755) if is_directory else None
        if entry.mode == _SUBMODULE:
            raise PathRefused(_IN_ANOTHER.format(path))
        content = self._content(entry)
        if path in self._crlf:
            content = content.replace(b"\n", b"\r\n")
        return Found(
            kind="symlink" if entry.mode == _LINK else "file",
            mode=int(entry.mode[-3:], 8) or 0o777,
            sha256=hashlib.sha256(content).hexdigest(),
            content=content,
        )

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory; empty when it does not exist."""
        return frozenset(self._below.get((self._prefix + path).rstrip("/"), ()))

    def added(self) -> list[str]:
        """Return the files that are missing in the commit."""
        return [
            path.removeprefix(self._prefix)
            for path in self._entries.keys() - self._committed
            if path.startswith(self._prefix)
        ]

    def mark(self) -> Mark:
        """Mark the current state."""
        return Mark(len(self._log))

    def store_entries(self, changes: Mapping[str, Found | None]) -> dict[str, TreeEntry | None]:
        """Store the new contents of merged files, and return their new entries."""
        kept = {
            path: found for path, found in changes.items() if found and found.content is not None
        }
        entries: dict[str, TreeEntry | None] = {
            self._prefix + path: TreeEntry(
                _mode(found), self._new.add_blob(self._written(path, found.content or b""))
            )
            for path, found in kept.items()
        }
        for path in changes.keys() - kept.keys():
            if (full := self._prefix + path) in self._entries:
                entries[full] = None
        return entries

    def rebuild(self, start: Mark, target: Entries) -> dict[str, TreeEntry | None]:
        """Change the tree to what it was at a mark with some changes; return what differed."""
        wanted = dict(reversed(self._log[start.position :])) | dict(target)
        changed = {
            path: entry for path, entry in wanted.items() if self._entries.get(path) != entry
        }
        for path in sorted(changed, key=lambda path: changed[path] is not None):
            self._log.append((path, self._entries.get(path)))
            self._set(path, changed[path])
        return changed

    def _set(self, path: str, entry: TreeEntry | None) -> None:
        if entry is not None:
            self._entries[path] = entry
        else:
            self._entries.pop(path, None)
        while path:
            directory, name = posixpath.split(path)
            names = self._below.setdefault(directory, set())
            if entry is not None:
                if name in names:
                    return
                names.add(name)
            else:
                names.discard(name)
                if names:
                    return
                del self._below[directory]
            path = directory

    def _keep_blobs(self, ids: Collection[str]) -> None:
        """Keep the contents of blobs, and forget others if they are too many."""
        known = {one: content for one in ids if (content := self._blob(one)) is not None}
        if sum(map(len, self._blobs.values())) > MAX_KEPT_BYTES:
            self._blobs = known
        missing = [one for one in ids if one not in known]
        self._blobs |= known | (self._commits.blobs(missing) if missing else {})

    def _blob(self, identity: str) -> bytes | None:
        kept = self._blobs.get(identity)
        return kept if kept is not None else self._new.content(identity)

    def _content(self, entry: TreeEntry) -> bytes:
        if entry.id not in self._blobs:
            self._keep_blobs([entry.id])
        return self._blobs[entry.id]

    def _written(self, path: str, content: bytes) -> bytes:
        is_new = self._prefix + path not in self._entries
        if path in self._crlf or (is_new and self._converts and is_text(content)):
            return content.replace(b"\r\n", b"\n")
        return content

    def _is_converted(self, file: ChangedFile, bundle: ChangeBundle) -> bool:
        """Return whether the work tree has CRLF where the commit has LF."""
        entry = self._entries.get(self._prefix + (file.from_path or file.path))
        if file.before is None or file.before.kind != "file" or entry is None:
            return False
        ours = self._blobs.get(entry.id, b"")
        if b"\n" not in ours or b"\r" in ours or not is_text(ours):
            return False
        theirs = bundle.content(file.before)
        return (
            b"\r\n" in theirs and is_text(theirs) and theirs.count(b"\n") == theirs.count(b"\r\n")
        )

    def _require_own(self, path: str) -> None:
        names = check_path(path)
        if b"\\" in path_bytes(path):
            raise PathRefused("Git stores no name with a backslash.")
        if path in self._filtered:
            raise PathRefused(
                f"Git runs a filter on it ({self._filtered[path]}), which a landing never starts: "
                "merge it into the work tree and commit it there."
            )
        for count in range(1, len(names)):
            above = "/".join(names[:count])
            entry = self._entries.get(self._prefix + above)
            if entry is not None and entry.mode == _LINK:
                raise PathRefused("The path goes through a symlink.")
            is_submodule = entry is not None and entry.mode == _SUBMODULE
            if is_submodule or os.path.lexists(f"{self._workspace}/{os_path(above)}/.git"):
                raise PathRefused(_IN_ANOTHER.format(above))


_IN_ANOTHER = (
    "{} is another repository, a submodule or a nested one: merge it into the work tree and commit "
    "it there."
)


def _mode(found: Found) -> str:
    if found.kind == "symlink":
        return _LINK
    return "100755" if is_executable(found.mode) else "100644"


class BranchUnusable(JobFailure):
    """A branch cannot be created in a folder; the text says what to do."""


class LandedElsewhere(BranchUnusable):
    """A branch of that name was created after the run started."""


@dataclass(frozen=True)
class LandedCommit:
    """A commit of a landing."""

    id: str
    job_id: str
    subject: str


Outcome = Literal["created", "before", "nothing"]


@dataclass(frozen=True)
class BranchReport:
    """The result of a landing on a branch."""

    branch: str
    outcome: Outcome
    """`before`: an earlier landing of the same job created it; `nothing`: there was nothing to
    commit, so no branch was created."""
    merge: MergeReport
    """The outcome of each change of the whole job, against the commit's files."""
    commits: tuple[LandedCommit, ...] = ()
    conflicts: tuple[ConflictingFile, ...] = ()
    """The versions of the conflicting files."""

    @property
    def tip(self) -> str | None:
        """The id of the last commit."""
        return self.commits[-1].id if self.commits else None


def base_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder; None without one."""
    try:
        repository = enclosing_repository(folder)
        return head_commit(repository) if repository else None
    except (RepositoryUnreadable, OSError):
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
    except RepositoryUnreadable as error:
        raise _unusable(repository, error) from error
    return commit


def _repository(folder: Path, branch: str) -> tuple[Repository, str]:
    """Return a folder's repository and its commit.

    Raises:
        BranchUnusable: There is none, or the name is not one.
    """
    try:
        if not is_branch_name(branch):
            raise BranchUnusable(f"{branch!r} is not a valid branch name.")
        repository = enclosing_repository(folder)
        commit = head_commit(repository) if repository else None
    except (RepositoryUnreadable, OSError) as error:
        raise BranchUnusable(f"Git cannot use {folder} ({error}).") from error
    if repository is None:
        raise BranchUnusable(
            f"{folder} is in no Git repository, so a branch cannot be created: leave --branch out, "
            "or `git init` it and commit its files first."
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
    """The commit that the branch starts from; None: the checked-out commit."""
    include_executable_config: bool = False


async def land_on_branch(
    jobs: LandedJobs, job_ids: Sequence[str], landing: BranchLanding
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
            if await asyncio.to_thread(building.is_branch_tip, landing.branch, job_ids[-1]):
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
    except RepositoryUnreadable as error:
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

    jobs: LandedJobs
    building: _Building
    seen: set[str] = field(default_factory=set)

    async def add(self, job_id: str, *, whole: bool = False) -> MergeReport | None:
        """Add the commits of a job: those of its children, then its own with the rest.

        A child that conflicts with the files at that place gets none: its changes are in its
        parent's commit.

        Args:
            job_id: The job.
            whole: It is not a child: all changes without conflicts are committed, and failures are
                raised.

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
        async for landed in child_landings(self.jobs, job_id):
            child = str(landed.data.get("id"))
            merged.pop(child, None)
            merged[child] = landed.data.get("outcome") == "in"
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
        self._committer = read_committer(commits)
        self._personal = personal_merge_settings(landing.workspace)
        self._left_out: set[str] = set()
        self.commits: list[LandedCommit] = []
        self.conflicts: tuple[ConflictingFile, ...] = ()

    def is_branch_tip(self, branch: str, job_id: str) -> bool:
        """Return whether a branch has these files by an earlier landing of a tree's root.

        The root may have no commit of its own, if its children have made all changes.
        """
        tip = self._git.tip(branch)
        if tip is None or self._git.find_tree(tip) != self._git.find_tree(self._tip):
            return False
        return job_id in self._git.trailers(tip, "Fanout-Tree")

    def merge(self, bundle: ChangeBundle, *, whole: bool) -> tuple[Entries | None, MergeReport]:
        """Merge a bundle into the tree; no entries if a child's bundle conflicts."""
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
            folder, bundle, rule, personal=self._personal, added=self.tree.added
        ).run()
        if not whole and (report.conflicts or report.failed):
            return None, report
        if whole:
            left = (report.conflicts, report.refused, report.failed, report.held_back)
            self.conflicts += collect(bundle, report.conflicts, self.tree.find)
            self._left_out = {one.path for some in left for one in some}
        return self.tree.store_entries(folder.changes), report

    def commit(self, start: Mark, target: Entries, record: JobRecord, summary: str) -> None:
        """Commit a job's changes since a mark, if there are any."""
        changed = self.tree.rebuild(start, target)
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
