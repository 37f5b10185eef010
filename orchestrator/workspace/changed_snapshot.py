"""A snapshot with a job's changes in it: what the children of that job start from.

It is made from the job's own snapshot and its change bundle, so no sandbox needs to be read for it.
What a bundle does not carry is as it was: the insides of `.git`, ignored files, files over the size
limit.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from orchestrator.jobs.changes import ChangeBundle, FileVersion
from orchestrator.workspace.snapshot import ARCHIVE_MTIME


def write(sink: IO[bytes], snapshot: Path | None, bundle: ChangeBundle) -> None:
    """Write the archive of `snapshot`, None for an empty one, with the changes of `bundle`.

    It blocks.

    Raises:
        MalformedBundle: the bundle lacks a content.
    """
    made = {file.path: file.after for file in bundle.changes.files if file.after is not None}
    gone = {file.from_path or file.path for file in bundle.changes.files if file.before is not None}
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as new:
        if snapshot is None:
            _write(new, None, {}, made, bundle)
            return
        with tarfile.open(snapshot, mode="r:") as old:
            kept = _kept({member.name: member for member in old}, gone, made)
            _write(new, old, kept, made, bundle)


def _kept(
    members: dict[str, tarfile.TarInfo], gone: set[str], made: dict[str, FileVersion]
) -> dict[str, tarfile.TarInfo]:
    """The members that stay.

    Those that did not change, without the directories that lost all they held.
    """
    held = _folders(members)
    left = {
        name: member for name, member in members.items() if name not in gone and name not in made
    }
    holding = _folders([*(name for name in left if not left[name].isdir()), *made])
    holding |= _folders(name for name in left if left[name].isdir() and name not in held)
    return {
        name: member
        for name, member in left.items()
        if not member.isdir() or name in holding or name not in held
    }


def _folders(paths: Iterable[str]) -> set[str]:
    """All directories above these paths."""
    above: set[str] = set()
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in above:
            above.add(folder)
            folder = posixpath.dirname(folder)
    return above


def _write(
    new: tarfile.TarFile,
    old: tarfile.TarFile | None,
    kept: dict[str, tarfile.TarInfo],
    made: dict[str, FileVersion],
    bundle: ChangeBundle,
) -> None:
    """Write all members in order of their paths, as `snapshot_archive` does."""
    for name in sorted({*kept, *made}):
        if name in made:
            new.addfile(*_member(name, made[name], bundle))
        elif old is not None:
            member = kept[name]
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _member(
    name: str, version: FileVersion, bundle: ChangeBundle
) -> tuple[tarfile.TarInfo, IO[bytes]]:
    """One changed path as a member."""
    info = tarfile.TarInfo(name)
    info.mode = version.mode
    info.mtime = ARCHIVE_MTIME
    content = bundle.content(version)
    if version.kind == "directory":
        info.type = tarfile.DIRTYPE
    elif version.kind == "symlink":
        info.type = tarfile.SYMTYPE
        info.linkname = content.decode("utf-8", "surrogateescape")
    else:
        info.size = len(content)
    return info, io.BytesIO(content)
