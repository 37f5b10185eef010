"""Both sides of conflicts, as `fanout diff ID --conflicts` prints them."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from fanout.orchestrator.cli.terminal import formatting
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.changes import ChangeBundle, ChangedFile, FileVersion, MalformedBundle
from fanout.orchestrator.jobs.failures import BlobMissing, InvalidJob, UnknownJob
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.landing.conflicts import KeptConflicts
from fanout.orchestrator.text_merge import is_text

SHOWN_LINES = 200
"""Of one file's difference: the whole versions lie beside it."""
MAX_COMPARED_BYTES = 1024**2
"""Of one side: comparing takes a time that grows with the square of its lines."""


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


def landing_conflicts(kept: KeptConflicts, job_id: str) -> list[ShownConflict]:
    """Return what of a job could not be landed on this machine."""
    place = kept.place(job_id)
    return [
        ShownConflict(
            job_id,
            file.path,
            file.reason,
            file.left_out or f"whole versions: {place}/{{base,yours,theirs}}/{file.path}",
            difference(file.yours, file.theirs, "yours", "theirs"),
        )
        for file in kept.read(job_id)
    ]


async def task_conflicts(client: JobClient, job_id: str) -> list[ShownConflict]:
    """Return what of a job's tasks could not be merged into its files.

    The task's side is its own change; the other one is the job's file as it ended, where it has
    changed it.
    """
    conflicts = await left_out_of(client, job_id)
    if not conflicts:
        return []
    own = await _sides(client, job_id, {one.path for one in conflicts})
    found = []
    for one in conflicts:
        child, path = one.job_id, one.path
        where = f"task {child} into job {job_id}; all of the task: fanout diff {child}"
        before, after = (await _sides(client, child, {path})).get(path, (None, None))
        _, ours = own.get(path, (None, before))
        name = f"{job_id} (at its end)" if path in own else "before the task"
        diff = difference(ours, after, name, f"task {child}") if path else ""
        found.append(ShownConflict(child, path, one.reason, where, diff))
    return found


async def left_out_of(client: JobClient, job_id: str) -> tuple[Unmerged, ...]:
    """Return what of a job's tasks could not be put into its files."""
    left_out: dict[str, list[Unmerged]] = {}
    async for event in client.events(job_id, follow=False):
        if event.type is EventType.CHILD_LANDED:
            child = str(event.data["id"])
            left_out[child] = [
                Unmerged(child, str(conflict["path"]), str(conflict["reason"]))
                for conflict in formatting.dicts(event.data, "conflicts")
                if event.data.get("outcome") != "sent back"
            ]
            if event.data.get("outcome") == "out" and not left_out[child]:
                left_out[child] = [Unmerged(child, "", str(event.data.get("reason")))]
    return tuple(unmerged for of_child in left_out.values() for unmerged in of_child)


Sides = dict[str, tuple[bytes | None, bytes | None]]
"""Path -> content before and after."""


async def _sides(client: JobClient, job_id: str, paths: Collection[str]) -> Sides:
    """Return the contents of some changed files of a job; none if they have expired."""
    try:
        async with client.changes(job_id) as bundle:
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
