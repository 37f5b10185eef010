"""What of a job's tasks could not be merged into its files, with both sides."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from fanout.orchestrator.jobs.changes import ChangeBundle, ChangedFile, FileVersion, MalformedBundle
from fanout.orchestrator.jobs.failures import BlobMissing, InvalidJob, UnknownJob
from fanout.orchestrator.jobs.store.journal import BEGINNING, PAGE, EventType, JournalEvent
from fanout.orchestrator.text_merge import is_text

SHOWN_LINES = 200
"""Of one file's difference: the whole versions lie beside it."""
MAX_COMPARED_BYTES = 1024**2
"""Of one side: comparing takes a time that grows with the square of its lines."""


class Jobs(Protocol):
    """Where the journals and the changes of jobs are read."""

    async def read_events(self, job_id: str, after: str, count: int) -> Sequence[JournalEvent]:
        """Return the events of a journal after an id, at most `count`."""

    def changes(self, job_id: str) -> AbstractAsyncContextManager[ChangeBundle]:
        """Open the change bundle of a job that has ended."""


@dataclass(frozen=True)
class Unmerged:
    """A change of a task that could not be put into its parent's files."""

    job_id: str
    path: str
    """Empty: all that it changed."""
    reason: str


@dataclass(frozen=True)
class ShownConflict:
    """A conflict with the difference of its sides."""

    job_id: str
    """The job whose change could not be merged."""
    path: str
    reason: str
    where: str
    """What could not be merged into what, and where to read more."""
    diff: str


async def task_conflicts(jobs: Jobs, job_id: str) -> list[ShownConflict]:
    """Return what of a job's tasks could not be merged into its files.

    The task's side is its own change; the other one is the job's file as it ended, where it has
    changed it.
    """
    conflicts = await left_out_of(jobs, job_id)
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
        found.append(ShownConflict(child, path, one.reason, where, diff if path else ""))
    return found


async def left_out_of(jobs: Jobs, job_id: str) -> tuple[Unmerged, ...]:
    """Return what of a job's tasks could not be put into its files."""
    left_out: dict[str, list[Unmerged]] = {}
    after = BEGINNING
    while events := await jobs.read_events(job_id, after, PAGE):
        after = events[-1].id
        for event in events:
            if event.type is EventType.CHILD_LANDED:
                left_out[str(event.data["id"])] = _left_out(event)
    return tuple(unmerged for of_child in left_out.values() for unmerged in of_child)


def _left_out(landed: JournalEvent) -> list[Unmerged]:
    """Return what of a task did not land, by the entry that reports its landing."""
    child, outcome = str(landed.data["id"]), landed.data.get("outcome")
    listed = landed.data.get("conflicts")
    conflicts = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if conflicts and outcome != "sent back":
        return [Unmerged(child, str(one["path"]), str(one["reason"])) for one in conflicts]
    return [Unmerged(child, "", str(landed.data.get("reason")))] if outcome == "out" else []


Sides = dict[str, tuple[bytes | None, bytes | None]]
"""Path -> content before and after."""


async def _sides(jobs: Jobs, job_id: str, paths: Collection[str]) -> Sides:
    """Return the contents of some changed files of a job; none if they have expired."""
    try:
        async with jobs.changes(job_id) as bundle:
            return await asyncio.to_thread(_read, bundle, paths)
    except (InvalidJob, UnknownJob, BlobMissing):
        return {}


def _read(bundle: ChangeBundle, paths: Collection[str]) -> Sides:
    return {
        file.path: (_content(bundle, file.before), _content(bundle, file.after))
        for file in bundle.changes.files
        if file.path in paths and _is_small(file)
    }


def _is_small(file: ChangedFile) -> bool:
    return all(one.size_bytes <= MAX_COMPARED_BYTES for one in (file.before, file.after) if one)


def _content(bundle: ChangeBundle, version: FileVersion | None) -> bytes | None:
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
