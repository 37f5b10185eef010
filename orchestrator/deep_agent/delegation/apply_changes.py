"""Three-way merge of a sub-agent's staged changes into its parent's files.

The three sides are the file as the sub-agent found it, as it left it, and as it is now. A file that
was changed in the meantime is never overwritten: it stays as it is, and the change is reported to
the parent as a conflict.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from ...git.attributes import (
    ATTRIBUTES_FILE,
    MAX_ATTRIBUTES_BYTES,
    PLAIN,
    MergeRule,
    attribute_folders,
    merge_rules,
)
from ...git.process import GitFailed
from ...git.stored_text import merge_either_form
from ...git.text_merge import is_text, merge_text, union_text
from ..backends.directory import DirectoryBackend
from ..backends.overlay import OverlayBackend, StagedFile
from ..backends.protocol import Backend

MAX_DIFF_CHARACTERS = 60_000
"""The longest diff of a conflicting change in the result: the parent has no other copy of it."""

_WHOLE = 2**31

PathLock = Callable[[str], AbstractAsyncContextManager[None]]
"""Returns the lock that everything in this process holds while it compares and writes a path."""


@dataclass(frozen=True)
class FileConflict:
    """A change that was not applied, because the file had been changed otherwise."""

    path: str
    reason: str
    diff: str = ""
    """The change that was not applied."""


@dataclass
class AppliedChanges:
    """The staged changes that were applied, and those that conflict."""

    applied: list[StagedFile] = field(default_factory=list)
    conflicts: list[FileConflict] = field(default_factory=list)


class _Conflict(Exception):
    """Both sides changed the file in ways that cannot be merged."""


async def apply_changes(overlay: OverlayBackend, base: Backend, lock: PathLock) -> AppliedChanges:
    """Apply an overlay's changes to `base`, each file completely or not at all.

    A file that cannot be read, merged or written is a conflict; nothing is raised for it.

    Args:
        overlay: The staged changes.
        base: The files to change, which may have changed since the overlay read them.
        lock: Held for each path while it is compared and written.
    """
    done = AppliedChanges()
    rules = _Rules(base, [file.path for file in overlay.changes])
    if any(file.path.rpartition("/")[2] == ATTRIBUTES_FILE for file in overlay.changes):
        await rules.of("")  # read before the changes of them are in
    for file in overlay.changes:
        if file.before == file.after and file.mode is None:
            continue
        try:
            async with lock(file.path):
                await _merge_one(base, file, rules)
            done.applied.append(file)
        except _Conflict as conflict:
            diff = await asyncio.to_thread(_diff, file)
            done.conflicts.append(FileConflict(file.path, str(conflict), diff))
        except (OSError, GitFailed) as error:
            reason = f"It could not be written ({type(error).__name__})."
            done.conflicts.append(
                FileConflict(file.path, reason, await asyncio.to_thread(_diff, file))
            )
    for directory in overlay.removed_directories:
        with suppress(OSError):
            await _remove_if_empty(base, directory)
    return done


class _Rules:
    """How files are merged, as the attributes say that `base` has when they are first needed."""

    def __init__(self, base: Backend, paths: list[str]) -> None:
        self._base = base
        self._paths = [path.lstrip("/") for path in paths]
        self._rules: Mapping[str, MergeRule] | None = None

    async def of(self, path: str) -> MergeRule:
        """Return the rule of a file."""
        if self._rules is None:
            files = {}
            for folder in attribute_folders(self._paths):
                name = f"{folder}/{ATTRIBUTES_FILE}" if folder else ATTRIBUTES_FILE
                with suppress(OSError, ValueError):
                    files[name] = await self._base.read_bytes(f"/{name}", MAX_ATTRIBUTES_BYTES)
            self._rules = await asyncio.to_thread(merge_rules, files, self._paths)
        return self._rules.get(path.lstrip("/"), PLAIN)


async def _merge_one(base: Backend, file: StagedFile, rules: _Rules) -> None:
    try:
        here = await base.read_bytes(file.path, _WHOLE)
    except FileNotFoundError:
        here = None
    except IsADirectoryError:
        raise _Conflict("A directory is here now.") from None
    if here == file.after and file.mode is None:
        return
    after = file.after
    if here != file.before:
        rule = await rules.of(file.path)
        after = await asyncio.to_thread(_merged, file, here, rule)
    if after is None:
        await base.delete(file.path)
        return
    try:
        if file.mode is not None and isinstance(base, DirectoryBackend):
            await base.write_bytes(file.path, after, create_only=here is None, mode=file.mode)
        else:
            await base.write_bytes(file.path, after, create_only=here is None)
    except FileExistsError:
        raise _Conflict("It was created at the same moment.") from None


def _merged(file: StagedFile, here: bytes | None, rule: MergeRule) -> bytes:
    if here is None:
        raise _Conflict("The sub-agent changed it; here it was deleted.")
    if file.after is None:
        raise _Conflict("The sub-agent deleted it; here it was changed.")
    if file.before is None and rule.how != "union":
        raise _Conflict("Both sides made it, with different content.")
    if rule.how == "binary":
        raise _Conflict("Both sides changed it, and its attributes forbid a merge.")

    def merge(before: bytes | None, ours: bytes, theirs: bytes) -> bytes:
        return _merge_texts(before or b"", ours, theirs, rule)

    merged = merge_either_form(rule, merge, _Conflict)(file.before, here, file.after)
    return here if merged is None else merged


def _merge_texts(before: bytes, here: bytes, after: bytes, rule: MergeRule) -> bytes:
    if not all(map(is_text, (before, here, after))):
        raise _Conflict("Both sides changed it, and it is not text that could be merged.")
    merged = (union_text if rule.how == "union" else merge_text)(before, here, after)
    if merged is None:
        raise _Conflict("Both sides changed the same lines.")
    return merged


async def _remove_if_empty(base: Backend, directory: str) -> None:
    walk = await base.walk(directory, max_entries=1, timeout_seconds=1)
    if walk.complete and not walk.entries:
        await base.delete(directory)


def _diff(file: StagedFile) -> str:
    if not is_text(file.before or b"") or not is_text(file.after or b""):
        return "(not text)"
    before, after = (
        (side or b"").decode(errors="replace").splitlines(keepends=True)
        for side in (file.before, file.after)
    )
    diff = "".join(difflib.unified_diff(before, after, f"a{file.path}", f"b{file.path}"))
    return diff if len(diff) <= MAX_DIFF_CHARACTERS else diff[:MAX_DIFF_CHARACTERS] + "\n(cut)"
