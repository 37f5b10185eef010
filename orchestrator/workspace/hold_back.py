"""Holds back changes that would become code on the host, until a person permits them.

`executable_config` knows the names, and `code_in_folder` finds other code in a folder. This module
checks what depends on the changes: a folder that becomes a bare repository, symlinks, and ignore
rules that would show more of the folder to later jobs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..executable_config import (
    LINK,
    folders_above,
    is_bare_repository,
    link_target,
    may_hold_code,
    plain,
    why_code,
)
from ..jobs.changes import (
    ChangeBundle,
    ChangedFile,
    FileChange,
    FileVersion,
    MalformedBundle,
)
from ..path_text import os_path, path_text
from .code_in_folder import CodeInFolder, code_in_folder, plain_path
from .repositories.configuration import RepositoryUnreadable
from .repositories.repository import newly_visible
from .rooted import PathRefused, RootedFolder

REVEALS = "with it, later jobs would be sent files that are ignored now"
UNKNOWN_RULES = "it says which files are sent to later jobs, and Git cannot compare"
BARE_REPOSITORY = "Git takes its folder for a repository and runs what its configuration says"

Names = Callable[[str], Iterable[str]]
"""Returns the names in a folder of the workspace, without names if it does not exist."""


class HoldBack:
    """Decides which changes of one merge are held back, and why.

    Args:
        names: Reads the folder that is merged into.
        code: Its files that are code for another reason than their names.
        arriving: The paths that the changes add or write.
        revealing: The paths of changed ignore rules, and the reason why each is dangerous.
    """

    def __init__(
        self,
        names: Names,
        code: CodeInFolder | None = None,
        arriving: Iterable[str] = (),
        revealing: Mapping[str, str] | None = None,
    ) -> None:
        self._names = names
        self._code = CodeInFolder() if code is None else code
        self._revealing = revealing or {}
        self._arriving: defaultdict[str, set[str]] = defaultdict(set)
        for path in arriving:
            for folder, name in zip(folders_above(path), reversed(path.split("/")), strict=True):
                self._arriving[plain_path(folder)].add(name)
        self._is_repository: dict[str, bool] = {}

    def why(self, path: str) -> str | None:
        """Return why a change at a path is held back; None if it is not."""
        reason = why_code(os_path(path)) or self._revealing.get(path) or self._code.why(path)
        if reason is not None:
            return reason
        if any(self._is_bare(folder) for folder in folders_above(path)):
            return BARE_REPOSITORY
        return None

    def why_file(self, file: ChangedFile, content_of: Callable[[FileVersion], bytes]) -> str | None:
        """Return why a job's change is held back: for either path of a rename, or a link's target.

        Args:
            file: The change.
            content_of: Returns the content of a version of the job's bundle.
        """
        paths = [file.path] if file.from_path is None else [file.path, file.from_path]
        if file.after is not None and file.after.kind == "symlink":
            if may_hold_code(os_path(file.path)):
                return LINK
            with suppress(MalformedBundle):  # the merge reports it
                target = path_text(content_of(file.after))
                if self.why(link_target(file.path, target)) is not None:
                    return LINK
        return next(filter(None, map(self.why, paths)), None)

    def _is_bare(self, folder: str) -> bool:
        """Whether a folder is a bare repository, or becomes one with the arriving files."""
        key = plain_path(folder)
        if key not in self._is_repository:
            names = {*self._names(folder), *self._arriving[key]}
            self._is_repository[key] = is_bare_repository(names)
        return self._is_repository[key]


def find_hold_back(root: Path, bundle: ChangeBundle) -> HoldBack:
    """Return the rule that says which changes of a job are held back in a folder; blocks.

    Args:
        root: The folder.
        bundle: All changes of the job.
    """
    arriving = [file.path for file in bundle.changes.files if file.after is not None]
    revealing = revealing_rules(root, bundle)
    return HoldBack(names_below(root), code_in_folder(root), arriving, revealing)


def revealing_rules(root: Path, bundle: ChangeBundle) -> dict[str, str]:
    """Return the changed `.gitignore` files with which later snapshots have more of a folder.

    They are judged together, by the current files of the folder, because one may prepare another
    one. Each comes with the reason for which it is held back.

    Args:
        root: The folder.
        bundle: All changes of a job.
    """
    changed: dict[str, tuple[bytes | None, bytes | None]] = {}
    for file in bundle.changes.files:
        sides = [(file.from_path or file.path, file.before, 0), (file.path, file.after, 1)]
        for path, version, side in sides:
            if version is not None and plain(path.rpartition("/")[2]) == ".gitignore":
                known = list(changed.get(os_path(path), (None, None)))
                if version.kind == "file":
                    with suppress(MalformedBundle):  # the merge reports it
                        known[side] = bundle.content(version)
                changed[os_path(path)] = (known[0], known[1])
    if not changed:
        return {}
    try:
        found = newly_visible(root, changed)
    except (RepositoryUnreadable, OSError) as error:
        return dict.fromkeys(map(path_text, changed), f"{UNKNOWN_RULES} ({error})")
    if not found:
        return {}
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return dict.fromkeys(map(path_text, changed), f"{REVEALS}: {found[0]}{more}")


def held_back_by_name(files: Sequence[FileChange]) -> dict[str, str]:
    """Return the changed paths that a merge holds back because of their names, with the reasons.

    Args:
        files: The changes of a job.
    """
    rule = HoldBack(
        lambda _: (), arriving=[file.path for file in files if file.change != "deleted"]
    )
    found = {file.path: rule.why(file.path) or rule.why(file.from_path or "") for file in files}
    return {path: reason for path, reason in found.items() if reason is not None}


def names_below(root: Path) -> Names:
    """Return a reader of the names in the folders of a workspace.

    Args:
        root: The workspace.
    """
    folder = RootedFolder(root)

    def names(path: str) -> Iterable[str]:
        with suppress(PathRefused, OSError):
            return folder.names(path) if path else map(path_text, os.listdir(root))  # noqa: PTH208
        return ()

    return names
