"""Putting a sub-agent's staged changes into its parent's files, three ways.

The three sides are the file as the sub-agent found it, as it left it, and as it is now. Nothing
that somebody changed meanwhile is ever overwritten: such a file stays as it is, and the parent is
told what was not put in.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from orchestrator.deep_agent.backends.overlay import OverlayBackend, StagedFile
from orchestrator.deep_agent.backends.protocol import Backend
from orchestrator.text_merge import GitFailed, is_text, merge_text

MAX_DIFF_CHARACTERS = 60_000
"""Of a change that could not be put in, what the parent is shown: it has no other copy of it."""

_WHOLE = 2**31

PathLock = Callable[[str], AbstractAsyncContextManager[None]]
"""Held while a path is compared and written, by everybody in this process who changes files."""


@dataclass(frozen=True)
class FileConflict:
    """A change that meets another one; the file keeps what is there."""

    path: str
    reason: str
    diff: str = ""
    """The change that was not put in."""


@dataclass
class Commit:
    """What became of each staged change."""

    applied: list[StagedFile] = field(default_factory=list)
    conflicts: list[FileConflict] = field(default_factory=list)


class _Collides(Exception):
    """Both sides changed the file in ways that do not go together."""


async def commit(overlay: OverlayBackend, base: Backend, lock: PathLock) -> Commit:
    """Put an overlay's changes into `base`, each file whole or not at all."""
    done = Commit()
    for file in overlay.changes:
        if file.before == file.after:
            continue
        try:
            async with lock(file.path):
                await _merge_one(base, file)
            done.applied.append(file)
        except _Collides as collision:
            diff = await asyncio.to_thread(_diff, file)
            done.conflicts.append(FileConflict(file.path, str(collision), diff))
        except (OSError, GitFailed) as error:
            reason = f"It could not be written ({type(error).__name__})."
            done.conflicts.append(
                FileConflict(file.path, reason, await asyncio.to_thread(_diff, file))
            )
    for directory in overlay.removed_directories:
        with suppress(OSError):
            await _remove_if_empty(base, directory)
    return done


async def _merge_one(base: Backend, file: StagedFile) -> None:
    try:
        here = await base.read_bytes(file.path, _WHOLE)
    except FileNotFoundError:
        here = None
    except IsADirectoryError:
        raise _Collides("A directory is here now.") from None
    if here == file.after:
        return
    after = file.after if here == file.before else await asyncio.to_thread(_merged, file, here)
    if after is None:
        await base.delete(file.path)
        return
    try:
        await base.write_bytes(file.path, after, create_only=here is None)
    except FileExistsError:
        raise _Collides("Somebody else made it at the same moment.") from None


def _merged(file: StagedFile, here: bytes | None) -> bytes:
    if here is None:
        raise _Collides("The sub-agent changed it; here it was deleted.")
    if file.after is None:
        raise _Collides("The sub-agent deleted it; here it was changed.")
    if file.before is None:
        raise _Collides("Both sides made it, with different content.")
    if not all(map(is_text, (file.before, here, file.after))):
        raise _Collides("Both sides changed it, and it is not text that could be merged.")
    merged = merge_text(file.before, here, file.after)
    if merged is None:
        raise _Collides("Both sides changed the same lines.")
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
