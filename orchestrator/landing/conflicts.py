"""Both sides of what could not be put into a folder or a branch, kept for a person to read.

`conflicts/ID/` of the state folder has `base`, `yours` and `theirs`, each with the paths of the
workspace, and `conflicts.json`, which lists them.
"""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from fanout.orchestrator.jobs.changes import ChangeBundle, FileVersion, MalformedBundle
from fanout.orchestrator.jobs.spec import WireModel
from fanout.orchestrator.private_files import create_private_file, make_private_folder
from fanout.orchestrator.workspace.merge_report import Conflict
from fanout.orchestrator.workspace.rooted import Found, PathRefused, RootedFolder, check_path

MAX_FILES = 100
"""Of one landing: a person reads no more one by one, and the bundle has them all."""
MAX_BYTES = 16 * 1024**2
"""Of all versions of one landing, which are held in memory while they are collected."""
KEPT = 1000
"""Landings with conflicts of one state folder: the newest ones."""

SIDES = ("base", "yours", "theirs")


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
        conflicts: What could not be merged.
        find: Returns the entry at a path of what was merged into.
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
        """Remove what is kept of a job's landing."""
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
