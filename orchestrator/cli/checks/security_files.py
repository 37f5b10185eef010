"""Security of files: who else may read or change what fanout obeys, keeps or runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from fanout.orchestrator.cli.checks.doctor_checks import Check
from fanout.orchestrator.configuration.settings import Settings

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_USE = 0o077


def file_security(settings: Settings, obeyed: Iterable[tuple[str, Path, bool]]) -> Iterable[Check]:
    """Check the modes and owners of files and folders that exist.

    Args:
        settings: where this installation keeps what it keeps.
        obeyed: what fanout obeys: a name, its path, and whether it holds secrets.
    """
    for name, path, mask in _masks(settings, obeyed):
        yield from _check(name, path, mask)


def modes_to_fix(
    settings: Settings, obeyed: Iterable[tuple[str, Path, bool]]
) -> Iterable[tuple[Path, int]]:
    """Yield the files and folders of this user that are open to others, and the mode each needs.

    A folder that its group shares (with the set-group-ID bit) stays open to that group.

    Args:
        settings: as of `file_security`.
        obeyed: as of `file_security`.
    """
    for _, path, mask in _masks(settings, obeyed):
        try:
            found = path.stat()
        except OSError:
            continue
        kept = stat.S_IRWXG if found.st_mode & stat.S_ISGID else 0
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid == os.geteuid() and mode & mask & ~kept:
            yield path, mode & ~(mask & ~kept)


def _masks(
    settings: Settings, obeyed: Iterable[tuple[str, Path, bool]]
) -> Iterable[tuple[str, Path, int]]:
    """Yield names, paths, and the permissions that nobody else may have."""
    for name, path, is_secret in obeyed:
        yield name, path, _OTHERS_USE if is_secret else _OTHERS_WRITE
    for name, path in (
        ("state folder", settings.state_dir),
        ("embedded.json", settings.state_dir / "embedded.json"),
    ):
        yield name, path, _OTHERS_USE
    blobs = urlsplit(settings.blobs)
    if blobs.scheme == "file":
        yield "blobs", Path(blobs.path), stat.S_IRWXO


def _check(name: str, path: Path, mask: int) -> Iterable[Check]:
    """Check one path, and that nobody else can put another one in its place."""
    try:
        found = path.stat()
        above = path.absolute().parent.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in {os.geteuid(), 0}:
        advice = f"Make it yours or root's: chown {os.geteuid()} {path}"
        yield Check("fail", name, f"{path} belongs to the user {found.st_uid}", advice)
    elif mode & mask:
        advice = f"chmod {mode & ~mask:o} {path}"
        yield Check("fail", name, f"{path}: other users have access ({mode:o})", advice)
    elif above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        advice = f"chmod o-w {path.absolute().parent}"
        yield Check("fail", name, f"{path} lies where anybody may replace it", advice)
    else:
        yield Check("ok", name, f"{path}: mode {mode:o}")
