"""The three-way merge of one file: the snapshot's, the job's and the workspace's version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

from ..git.attributes import MergeRule
from ..git.merge_driver import run_driver
from ..git.stored_text import MergeTexts, merge_either_form
from ..git.text_merge import contains_change, is_text, merge_text, union_text
from ..jobs.changes import ChangedFile, ChangeKind, FileVersion
from .rooted import Found

How = Literal["taken", "already", "merged"]

ConflictKind = Literal["overlap", "binary", "both_added", "deleted", "type", "rename", "directory"]

_EXECUTE_BITS = 0o111
_READ_BITS = 0o444


class ChangesCollide(Exception):
    """Both sides changed the file in conflicting ways."""

    def __init__(self, kind: ConflictKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: ConflictKind = kind
        self.reason = reason


@dataclass(frozen=True)
class Settled:
    """The merged version of a file."""

    content: bytes | None
    """None: the workspace's content."""
    mode: int
    how: How


def settle(
    before: FileVersion | None,
    after: FileVersion,
    ours: Found,
    content_of: Callable[[FileVersion], bytes],
    merge_texts: MergeTexts | None = None,
) -> Settled:
    """Merge a job's change of a file with the workspace's version.

    The content and the executable bit are merged separately; the bit never conflicts.

    Args:
        before: The version in the snapshot; None when the job added the file.
        after: The job's version.
        ours: The workspace's version.
        content_of: Returns the content of a version of the job's bundle.
        merge_texts: Merges the contents that both sides have changed; None: as texts without
            attributes.

    Raises:
        ChangesCollide: Both sides changed the content in different ways.
        GitFailed: The text merge could not run.
    """
    mode = _merge_mode(before, after, ours)
    kept = Settled(None, mode, "already" if mode == ours.mode else "taken")
    if is_same(after, ours) or (before is not None and _is_mode_change(before, after)):
        return kept
    if before is not None and is_same(before, ours):
        return Settled(content_of(after), mode, "taken")
    if not ours.kind == after.kind == (before or after).kind:
        raise ChangesCollide(
            "type", "One side has a file, the other a link, a directory or another type."
        )
    base = content_of(before) if before is not None else None
    theirs = content_of(after)
    if ours.kind != "file" or ours.content is None:
        raise _no_text(base)
    merged = (merge_texts or merge_plain_texts)(base, ours.content, theirs)
    return kept if merged in {None, ours.content} else Settled(merged, mode, "merged")


def merge_plain_texts(base: bytes | None, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge two texts with their common origin, without attributes.

    Args:
        base: The origin; None if both sides added the file.
        ours: The text to change.
        theirs: The changed origin.

    Returns:
        None if the text has the change already.

    Raises:
        ChangesCollide: Both sides changed the same lines, or they are no texts.
        GitFailed: Git is not installed or failed.
    """
    if base is None or not all(map(is_text, (base, ours, theirs))):
        raise _no_text(base)
    merged = merge_text(base, ours, theirs)
    if merged == ours or contains_change(base, ours, theirs):
        return None
    if merged is None:
        raise ChangesCollide("overlap", "Both sides changed the same lines.")
    return merged


def merge_texts_by(rule: MergeRule, folder: Path, path: str) -> MergeTexts:
    """Return what merges the texts of a file as its attributes say; see `merge_plain_texts`.

    What conflicts as it is in the folder is merged in the form that Git stores. A driver merges
    other contents than texts, too.

    Args:
        rule: The rule of the file.
        folder: Where a driver runs.
        path: The path of the file.
    """

    def drive(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
        merged = run_driver(rule, folder, path, (base, ours, theirs))
        if merged in {None, ours}:
            return merged
        again = run_driver(rule, folder, path, (base, merged, theirs))
        return merged if again == merged else None

    def merge(base: bytes | None, ours: bytes, theirs: bytes) -> bytes | None:
        is_text_merge = all(map(is_text, (base or b"", ours, theirs)))
        if base is not None and is_text_merge and contains_change(base, ours, theirs):
            return None
        if rule.how == "binary" and base is not None:
            raise ChangesCollide(
                "binary", "Both sides changed it, and its attributes forbid a merge."
            )
        if rule.how == "binary" or (rule.how == "union" and not is_text_merge):
            raise _no_text(base)
        merge_once = union_text if rule.how == "union" else drive
        merged = merge_once(base or b"", ours, theirs)
        if merged is None:
            raise ChangesCollide("overlap", "Both sides changed the same lines.")
        return None if merged == ours else merged

    merge_once = merge_plain_texts if rule.how == "text" else merge

    return merge_either_form(rule, merge_once, ChangesCollide)


def _no_text(base: bytes | None) -> ChangesCollide:
    if base is None:
        return _both_added()
    return ChangesCollide("binary", "Both sides changed it, and only text can be merged.")


def _both_added() -> ChangesCollide:
    return ChangesCollide("both_added", "Both sides added it, with different content.")


def is_same(version: FileVersion, found: Found) -> bool:
    """Return whether an entry has a version's kind and content; permission bits are ignored."""
    return (version.kind, version.sha256) == (found.kind, found.sha256)


def _is_mode_change(before: FileVersion, after: FileVersion) -> bool:
    return (before.kind, before.sha256) == (after.kind, after.sha256)


def is_executable(mode: int) -> bool:
    """Return whether a mode says that its owner may execute the file."""
    return bool(mode & 0o100)


def _merge_mode(before: FileVersion | None, after: FileVersion, ours: Found) -> int:
    """Return the workspace's bits, made executable or not by the job, which decides nothing else.

    Everyone who may read the file may execute it.
    """
    if ours.kind != "file" or after.kind != "file":
        return ours.mode
    if before is None:  # both added it: it is executable if it is on one side
        wanted = is_executable(after.mode) or is_executable(ours.mode)
    elif is_executable(before.mode) != is_executable(after.mode):
        wanted = is_executable(after.mode)
    else:
        return ours.mode
    if not wanted:
        return ours.mode & ~_EXECUTE_BITS
    return ours.mode | ((ours.mode & _READ_BITS) >> 2)


def in_order(files: Iterable[ChangedFile]) -> list[ChangedFile]:
    """Return changes in an order in which each finds its path free.

    A file may replace a directory, and a directory a file. So removals come first, and a file moves
    away before another one takes a path above or below its own. Where files wait for each other, as
    those of a directory that has changed places with a file, each rename becomes a removal and an
    addition.
    """
    changes = list(files)
    while True:
        try:
            writes = TopologicalSorter(_in_the_way(changes)).static_order()
            ordered = [changes[number] for number in writes]
        except CycleError as error:
            tangled = set(error.args[1])
            changes = [
                part
                for number, file in enumerate(changes)
                for part in (_split(file) if number in tangled else (file,))
            ]
        else:
            return [*(file for file in changes if file.after is None), *ordered]


def _in_the_way(changes: Sequence[ChangedFile]) -> dict[int, list[int]]:
    """Return the number of each change that writes -> those of the renames that come before it."""
    moved = {file.from_path: number for number, file in enumerate(changes) if file.from_path}
    below: dict[str, list[int]] = {}
    for path, number in moved.items():
        for above in _above(path):
            below.setdefault(above, []).append(number)
    return {
        number: [moved[above] for above in _above(file.path) if above in moved]
        + below.get(file.path, [])
        for number, file in enumerate(changes)
        if file.after is not None
    }


def _above(path: str) -> Iterator[str]:
    """Yield the directories that a path is in, without the folder itself."""
    while path := path.rpartition("/")[0]:
        yield path


def _split(file: ChangedFile) -> Iterator[ChangedFile]:
    """Split a rename into a removal and an addition."""
    if file.from_path is None:
        yield file
        return
    yield ChangedFile(path=file.from_path, change=ChangeKind.DELETED, before=file.before)
    yield ChangedFile(path=file.path, change=ChangeKind.ADDED, after=file.after)
