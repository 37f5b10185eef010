"""Both sides of conflicts with a folder or a branch, kept for a person to read.

`conflicts/ID/` of the state folder has `base`, `yours` and `theirs`, each with the paths of the
workspace, and `conflicts.json`, which lists them.
"""

from __future__ import annotations

import asyncio
import difflib
import posixpath
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from ..git.text_merge import is_text
from ..jobs.changes import ChangeBundle, ChangedFile, FileVersion, MalformedBundle
from ..jobs.failures import BlobMissing, InvalidJob, UnknownJob
from ..jobs.result import JobResult
from ..jobs.spec import WireModel
from ..jobs.state import JobRecord
from ..jobs.store.journal import BEGINNING, PAGE, EventType, JournalEvent
from ..private_files import create_private_file, make_private_folder
from ..workspace.merge_report import Conflict
from ..workspace.rooted import Found, PathRefused, RootedFolder, check_path

MAX_FILES = 100
"""The most files of one landing: a person reads no more one by one, and the bundle has them all."""
MAX_BYTES = 16 * 1024**2
"""The most bytes of all versions of one landing, which are held in memory while they are collected.
"""
KEPT = 1000
"""The most landings whose conflicts a state folder keeps: the newest ones."""

SIDES = ("base", "yours", "theirs")
SHOWN_LINES = 200
"""The most lines that are shown of one file's difference: the whole versions are stored with it."""
MAX_COMPARED_BYTES = 1024**2
"""The largest side that is compared: the time grows with the square of its lines."""


class ConflictingFile(WireModel):
    """A conflict with the versions of its file."""

    path: str
    reason: str
    base: bytes | None = None
    """The file that the job started from; None: there was none, or it is left out."""
    yours: bytes | None = None
    """The file in the folder or in the branch's commit."""
    theirs: bytes | None = None
    """The job's file."""
    left_out: str | None = None
    """Why the versions are not kept."""


class _List(WireModel):
    """The content of `conflicts.json`."""

    files: tuple[ConflictingFile, ...] = ()


def collect(
    bundle: ChangeBundle, conflicts: Iterable[Conflict], find: Callable[[str], Found | None]
) -> tuple[ConflictingFile, ...]:
    """Return the versions of files that conflict; blocks.

    Args:
        bundle: The job's changes.
        conflicts: The changes that could not be merged.
        find: Returns the entry at a path of the target of the merge.
    """
    changed = {file.path: file for file in bundle.changes.files}
    collected: list[ConflictingFile] = []
    room = MAX_BYTES
    for conflict in conflicts:
        file = changed.get(conflict.path)
        found = ConflictingFile(path=conflict.path, reason=conflict.reason)
        if file is None or len(collected) >= MAX_FILES:
            left_out = f"Only {MAX_FILES} files are kept."
            collected.append(found.model_copy(update={"left_out": left_out}))
            continue
        ours: Found | None = None
        with suppress(OSError, PathRefused):
            ours = find(conflict.path) or (find(file.from_path) if file.from_path else None)
        size = sum(one.size_bytes for one in (file.before, file.after) if one)
        size += len(ours.content or b"") if ours else 0
        if size > room:
            left_out = f"The versions of one landing may have {MAX_BYTES:,} bytes."
            collected.append(found.model_copy(update={"left_out": left_out}))
            continue
        room -= size
        sides = {
            "base": _content(bundle, file.before),
            "yours": ours.content if ours else None,
            "theirs": _content(bundle, file.after),
        }
        collected.append(found.model_copy(update=sides))
    return tuple(collected)


def _content(bundle: ChangeBundle, version: FileVersion | None) -> bytes | None:
    if version is None or version.kind == "directory":
        return None
    try:
        return bundle.content(version)
    except MalformedBundle:
        return None


class KeptConflicts:
    """The conflicts of the landings of one machine.

    Args:
        state_dir: The state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir.expanduser() / "conflicts"

    def place(self, job_id: str) -> Path:
        """Return the folder with the versions of a job's landing."""
        return self._folder / job_id

    def keep(self, job_id: str, files: Iterable[ConflictingFile]) -> Path | None:
        """Store the conflicts of a job's last landing; without any, forget those of an earlier one.

        Returns:
            Where the versions are; None without conflicts.

        Raises:
            OSError: The state folder cannot be written.
        """
        files = tuple(files)
        self.forget(job_id)
        if not files:
            return None
        place = self.place(job_id)
        for side in SIDES:
            make_private_folder(place / side)
            for file in files:
                content = getattr(file, side)
                if content is not None:
                    with suppress(PathRefused, FileExistsError, NotADirectoryError):
                        _write(place / side, file.path, content)
        listed = [file.model_copy(update=dict.fromkeys(SIDES)) for file in files]
        with create_private_file(place / "conflicts.json") as stream:
            stream.write(_List(files=tuple(listed)).model_dump_json().encode())
        newest_first = sorted(self._folder.iterdir(), reverse=True)
        for old in newest_first[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        return place

    def forget(self, job_id: str) -> None:
        """Remove the kept conflicts of a job's landing."""
        shutil.rmtree(self.place(job_id), ignore_errors=True)

    def read(self, job_id: str) -> tuple[ConflictingFile, ...]:
        """Return the conflicts of a job's last landing, with their versions."""
        place = self.place(job_id)
        try:
            listed = _List.model_validate_json((place / "conflicts.json").read_bytes()).files
        except (OSError, ValidationError):
            return ()
        return tuple(
            file.model_copy(update={side: _read(place / side, file.path) for side in SIDES})
            for file in listed
        )


def _write(folder: Path, path: str, content: bytes) -> None:
    rooted = RootedFolder(folder)
    steps = check_path(path)
    for count in range(1, len(steps)):
        with suppress(FileExistsError):
            rooted.create_directory("/".join(steps[:count]), 0o700)
    rooted.create_file(posixpath.join(*steps), content, 0o600, None)


def _read(folder: Path, path: str) -> bytes | None:
    with suppress(OSError, PathRefused):
        found = RootedFolder(folder).find(path)
        return found.content if found else None
    return None


class LandedJobs(Protocol):
    """The parts of jobs that a landing reads; `JobClient` documents the methods."""

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record."""

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result."""

    async def read_events(self, job_id: str, after: str, count: int) -> Sequence[JournalEvent]:
        """Return the events of a journal after an id, at most `count`."""

    def changes(self, job_id: str) -> AbstractAsyncContextManager[ChangeBundle]:
        """Open the change bundle of a job that has ended."""


@dataclass(frozen=True)
class Unmerged:
    """A change of a task that could not be merged into its parent's files."""

    job_id: str
    path: str
    """The path; empty: all changes of the task."""
    reason: str


@dataclass(frozen=True)
class TaskConflict:
    """A conflict with the difference of its sides."""

    job_id: str
    """The job whose change could not be merged."""
    path: str
    reason: str
    where: str
    """A text that names both sides, and where to read more."""
    diff: str


async def task_conflicts(jobs: LandedJobs, job_id: str) -> list[TaskConflict]:
    """Return the conflicts of a job's tasks with its files.

    The task's side is its own change; the other one is the job's file as it ended, where it has
    changed it.
    """
    conflicts = await find_unmerged(jobs, job_id)
    if not conflicts:
        return []
    own = await _sides(jobs, job_id, {one.path for one in conflicts})
    found = []
    for one in conflicts:
        child, path = one.job_id, one.path
        where = f"task {child} into job {job_id}; all of the task: fanout diff {child}"
        before, after = (await _sides(jobs, child, {path})).get(path, (None, None))
        _, ours = own.get(path, (None, before))
        name = f"{job_id} (at its end)" if path in own else "before the task"
        diff = await asyncio.to_thread(difference, ours, after, name, f"task {child}")
        found.append(TaskConflict(child, path, one.reason, where, diff if path else ""))
    return found


async def find_unmerged(jobs: LandedJobs, job_id: str) -> tuple[Unmerged, ...]:
    """Return the changes of a job's tasks that could not be merged into its files."""
    left_out: dict[str, list[Unmerged]] = {}
    async for landed in child_landings(jobs, job_id):
        left_out[str(landed.data["id"])] = _left_out(landed)
    return tuple(unmerged for of_child in left_out.values() for unmerged in of_child)


async def child_landings(jobs: LandedJobs, job_id: str) -> AsyncIterator[JournalEvent]:
    """Yield the entries of a job's journal that report the landings of its tasks."""
    after = BEGINNING
    while events := await jobs.read_events(job_id, after, PAGE):
        after = events[-1].id
        for event in events:
            if event.type is EventType.CHILD_LANDED:
                yield event


def _left_out(landed: JournalEvent) -> list[Unmerged]:
    """Return the changes of a task that did not land, by the entry that reports its landing."""
    child, outcome = str(landed.data["id"]), landed.data.get("outcome")
    listed = landed.data.get("conflicts")
    conflicts = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if conflicts and outcome != "sent back":
        return [Unmerged(child, str(one["path"]), str(one["reason"])) for one in conflicts]
    return [Unmerged(child, "", str(landed.data.get("reason")))] if outcome == "out" else []


Sides = dict[str, tuple[bytes | None, bytes | None]]
"""Path -> content before and after."""


async def _sides(jobs: LandedJobs, job_id: str, paths: Collection[str]) -> Sides:
    """Return the contents of some changed files of a job; none if they have expired."""
    try:
        async with jobs.changes(job_id) as bundle:
            return await asyncio.to_thread(_read_record, bundle, paths)
    except (InvalidJob, UnknownJob, BlobMissing):
        return {}


def _read_record(bundle: ChangeBundle, paths: Collection[str]) -> Sides:
    return {
        file.path: (_content_of_change(bundle, file.before), _content_of_change(bundle, file.after))
        for file in bundle.changes.files
        if file.path in paths and _is_small(file)
    }


def _is_small(file: ChangedFile) -> bool:
    return all(one.size_bytes <= MAX_COMPARED_BYTES for one in (file.before, file.after) if one)


def _content_of_change(bundle: ChangeBundle, version: FileVersion | None) -> bytes | None:
    try:
        return None if version is None else bundle.content(version)
    except MalformedBundle:
        return None


def difference(ours: bytes | None, theirs: bytes | None, our_name: str, their_name: str) -> str:
    """Return the difference of two versions, at most `SHOWN_LINES` lines of it."""
    sides = [side or b"" for side in (ours, theirs)]
    if any(len(side) > MAX_COMPARED_BYTES or not is_text(side) for side in sides):
        return "(binary or too large to compare)\n"
    old, new = (side.decode(errors="replace").splitlines() for side in sides)
    our_name += " (no file)" if ours is None else ""
    their_name += " (no file)" if theirs is None else ""
    compared = difflib.unified_diff(old, new, our_name, their_name, lineterm="")
    shown = list(islice(compared, SHOWN_LINES + 1))
    if len(shown) > SHOWN_LINES:
        shown[SHOWN_LINES:] = ["… (cut)"]
    return "".join(f"{line}\n" for line in shown)
