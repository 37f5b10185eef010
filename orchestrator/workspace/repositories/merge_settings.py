"""The merge settings of a person, and those of a repository, read as data.

A merge driver is a program, so it counts only if the person's or the machine's configuration has
it: that of a repository may come from anywhere, as the repository does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...git.attributes import (
    ATTRIBUTES_FILE,
    MAX_ATTRIBUTES_BYTES,
    PersonalMergeSettings,
)
from ...path_text import path_text
from .configuration import (
    RepositoryUnreadable,
    personal_folder,
    read_data,
    read_settings,
)
from .repository import enclosing_repository


def personal_merge_settings(folder: Path) -> PersonalMergeSettings:
    """Return how a person's Git merges in a folder; blocks.

    Unreadable settings count as empty.

    Args:
        folder: The folder whose files are merged.
    """
    settings = dict(read_settings([]))
    drivers = {
        name.removeprefix("merge.").removesuffix(".driver"): command
        for name, command in settings.items()
        if name.startswith("merge.") and name.endswith(".driver") and command
    }
    named = settings.get("core.attributesfile")
    personal = Path(os.path.expanduser(named)) if named else personal_folder() / "attributes"  # noqa: PTH111 - an unknown home stays
    work_tree, own = folder.resolve(), b""
    with suppress(RepositoryUnreadable, OSError):
        repository = enclosing_repository(folder)
        if repository is not None:
            work_tree = repository.work_tree
            own = _read(repository.common_dir / "info/attributes")
    inner = folder.resolve().relative_to(work_tree).parts
    above = {
        path_text((Path(*inner[:count]) / ATTRIBUTES_FILE).as_posix()): _read_plain(
            work_tree.joinpath(*inner[:count], ATTRIBUTES_FILE)
        )
        for count in range(len(inner))
    }
    return PersonalMergeSettings(
        work_tree,
        path_text("".join(f"{name}/" for name in inner)),
        {path: content for path, content in above.items() if content},
        _read(work_tree / personal),
        own,
        drivers,
    )


def _read_plain(path: Path) -> bytes:
    """Return what Git reads from an attribute file of a work tree; a link counts as empty."""
    return b"" if path.is_symlink() else _read(path)


def _read(path: Path) -> bytes:
    with suppress(RepositoryUnreadable):
        return read_data(path, MAX_ATTRIBUTES_BYTES)
    return b""
